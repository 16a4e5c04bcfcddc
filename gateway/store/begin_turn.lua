-- Adds a turn to a conversation that nobody is decoding.
-- KEYS: meta, tokens, events. ARGV: nonce, owner, lease_ms, ttl_ms, elapsed_us, packed tokens, expected epoch,
-- 'append' or 'replace', request id, then field, value, ….
-- BEGUN epoch; JOINED: this very request's turn is the current one; BUSY: another owns the session; GONE.
local nonce, owner, lease_ms, ttl_ms, elapsed_us, tokens, expected, how, request_id = unpack(ARGV, 1, 9)
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now_us / 1000)
local meta = redis.call('HMGET', KEYS[1], 'status', 'epoch', 'lease_until_ms', 'nonce', 'request_id')
if not meta[1] then return { 'GONE', 0 } end
local epoch = tonumber(meta[2])
if meta[4] == nonce then return { 'BEGUN', epoch } end
if request_id ~= '' and meta[5] == request_id then return { 'JOINED', epoch } end
if meta[1] == 'running' and tonumber(meta[3]) > now_ms then return { 'BUSY', epoch } end
if meta[2] ~= expected then return { 'BUSY', epoch } end
if how == 'append' then
  redis.call('APPEND', KEYS[2], tokens)
else
  -- Entry ids are lengths: a text that does not continue the stored one starts its events anew.
  redis.call('SET', KEYS[2], tokens)
  redis.call('DEL', KEYS[3])
end
redis.call('HINCRBY', KEYS[1], 'turn', 1)
redis.call('HDEL', KEYS[1], 'first_us', 'finished_us')
redis.call('HSET', KEYS[1],
  'status', 'running', 'epoch', string.format('%.0f', epoch + 1), 'owner', owner, 'nonce', nonce,
  'lease_until_ms', string.format('%.0f', now_ms + lease_ms),
  'started_us', string.format('%.0f', now_us - elapsed_us), 'commit_us', '0',
  'finish', '0', 'cut', '-1', 'numerics', '', 'exact', '', unpack(ARGV, 10))
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl_ms) end
return { 'BEGUN', epoch + 1 }
