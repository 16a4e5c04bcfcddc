-- One consistent look. KEYS: meta, tokens. Returns now_ms, the meta hash flat, the packed tokens.
local clock = redis.call('TIME')
return {
  clock[1] * 1000 + math.floor(clock[2] / 1000), redis.call('HGETALL', KEYS[1]), redis.call('GET', KEYS[2])
}
