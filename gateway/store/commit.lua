-- Appends settled tokens, compare-and-append on epoch and base; the only writer of tokens within a turn.
-- KEYS: meta, tokens, events. ARGV: epoch, base, packed tokens, finish, cut, lease_ms, ttl_ms, commit_us, then the
-- serialized Settled messages that these tokens came in.
-- FENCED: another epoch (or no session); SHORT length: tokens are missing before base; OK length: held now, or held
-- already; CONFLICT length: something else is held there.
local epoch, base, tokens, finish, cut, lease_ms, ttl_ms, commit_us = unpack(ARGV, 1, 8)
local meta = redis.call('HMGET', KEYS[1], 'epoch', 'finish', 'cut', 'status', 'turn')
if meta[1] ~= epoch then return { 'FENCED', 0 } end
base = tonumber(base)
local count = #tokens / 4
local length = redis.call('STRLEN', KEYS[2]) / 4
if base > length then return { 'SHORT', length } end
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
if base < length or meta[2] ~= '0' then
  local held = count == 0 and '' or redis.call('GETRANGE', KEYS[2], base * 4, (base + count) * 4 - 1)
  local same_end = finish == '0' or (base + count == length and meta[2] == finish and meta[3] == cut)
  if held ~= tokens or not same_end then return { 'CONFLICT', length } end
elseif count > 0 or finish ~= '0' then
  length = length + count
  local fields = { 'turn', meta[5] }
  for i = 9, #ARGV do
    fields[#fields + 1] = 'settled' .. (i - 9)
    fields[#fields + 1] = ARGV[i]
  end
  if cut ~= '-1' then
    fields[#fields + 1] = 'cut'
    fields[#fields + 1] = cut
  end
  if count > 0 then
    redis.call('APPEND', KEYS[2], tokens)
    redis.call('HSETNX', KEYS[1], 'first_us', string.format('%.0f', now_us))
  end
  -- An end without tokens stands after the entry of the same length.
  redis.call('XADD', KEYS[3], string.format('%.0f-%d', length, count > 0 and 0 or 1), unpack(fields))
  redis.call('HINCRBY', KEYS[1], 'commit_us', commit_us)
  if finish ~= '0' then
    redis.call('HSET', KEYS[1], 'status', 'finished', 'finish', finish, 'cut', cut,
      'lease_until_ms', '0', 'finished_us', string.format('%.0f', now_us))
    meta[4] = 'finished'
  end
end
if meta[4] == 'running' then
  redis.call('HSET', KEYS[1], 'lease_until_ms', string.format('%.0f', math.floor(now_us / 1000) + lease_ms))
end
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, ttl_ms) end
return { 'OK', length }
