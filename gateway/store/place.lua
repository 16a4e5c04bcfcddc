-- Notes which verifier decodes. KEYS: meta. ARGV: epoch, then field, value, ….
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return { 'FENCED', 0 } end
redis.call('HSET', KEYS[1], unpack(ARGV, 2))
return { 'OK', 0 }
