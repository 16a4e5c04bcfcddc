-- Claims the next epoch. KEYS: meta, tokens, events. ARGV: nonce, owner, lease_ms, ttl_ms, held epoch.
-- With a held epoch (> 0) its owner moves on to another verifier; with 0 a session is taken whose lease lapsed or whose
-- client went away.
-- TAKEN epoch; HELD remaining ms; FENCED: the held epoch is over; FINISHED; GONE.
local nonce, owner, lease_ms, ttl_ms, held = unpack(ARGV)
local clock = redis.call('TIME')
local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
local meta = redis.call('HMGET', KEYS[1], 'status', 'epoch', 'lease_until_ms', 'nonce')
if not meta[1] then return { 'GONE', 0 } end
if meta[4] == nonce then return { 'TAKEN', tonumber(meta[2]) } end
if meta[1] == 'finished' then return { 'FINISHED', 0 } end
if held ~= '0' then
  if meta[2] ~= held or meta[1] ~= 'running' then return { 'FENCED', 0 } end
elseif meta[1] == 'running' and tonumber(meta[3]) > now_ms then
  return { 'HELD', tonumber(meta[3]) - now_ms }
end
local epoch = tonumber(meta[2]) + 1
redis.call('HSET', KEYS[1], 'status', 'running', 'epoch', string.format('%.0f', epoch), 'owner', owner,
  'nonce', nonce, 'lease_until_ms', string.format('%.0f', now_ms + lease_ms))
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl_ms) end
return { 'TAKEN', epoch }
