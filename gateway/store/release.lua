-- Gives the lease up at once. KEYS: meta. ARGV: epoch, status ('running' or 'detached').
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'status')
if meta[1] ~= ARGV[1] or meta[2] ~= 'running' then return { 'FENCED', 0 } end
redis.call('HSET', KEYS[1], 'status', ARGV[2], 'lease_until_ms', '0')
return { 'OK', 0 }
