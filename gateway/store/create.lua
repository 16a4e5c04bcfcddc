-- Makes a session, once.
-- KEYS: meta, tokens. ARGV: nonce, owner, lease_ms, ttl_ms, elapsed_us, packed tokens, then field, value, ….
-- CREATED also for the same nonce again (the reply was lost); EXISTS for another's session.
local nonce, owner, lease_ms, ttl_ms, elapsed_us, tokens = unpack(ARGV, 1, 6)
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local made = redis.call('HGET', KEYS[1], 'nonce')
if made == nonce then return { 'CREATED', 1 } end
if made then return { 'EXISTS', 0 } end
redis.call('HSET', KEYS[1],
  'status', 'running', 'epoch', '1', 'turn', '1', 'owner', owner, 'nonce', nonce,
  'lease_until_ms', string.format('%.0f', math.floor(now_us / 1000) + lease_ms),
  'started_us', string.format('%.0f', now_us - elapsed_us), 'commit_us', '0',
  'finish', '0', 'cut', '-1', 'verifier', '', 'numerics', '', 'exact', '', unpack(ARGV, 7))
redis.call('SET', KEYS[2], tokens)
redis.call('PEXPIRE', KEYS[1], ttl_ms)
redis.call('PEXPIRE', KEYS[2], ttl_ms)
return { 'CREATED', 1 }
