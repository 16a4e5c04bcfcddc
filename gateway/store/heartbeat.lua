-- Renews the lease of the epoch that runs. KEYS: meta, tokens, events. ARGV: epoch, lease_ms, ttl_ms.
-- FENCED: another epoch, or no session; OK also where this epoch's answer has ended, its lease with it.
local epoch, lease_ms, ttl_ms = unpack(ARGV)
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'status')
if meta[1] ~= epoch then return { 'FENCED', 0 } end
if meta[2] ~= 'running' then return { 'OK', 0 } end
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('HSET', KEYS[1], 'lease_until_ms', string.format('%.0f', now_ms + lease_ms))
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl_ms) end
return { 'OK', 0 }
