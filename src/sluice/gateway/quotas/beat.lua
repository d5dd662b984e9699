-- A process is alive. ARGV: process, how long a process may be silent (ms).
-- Gives {microseconds, whether it was not known, number of processes, those that are dead ...}.
local time = redis.call('TIME')
local ms = time[1] * 1000 + math.floor(time[2] / 1000)
local added = redis.call('ZADD', 'sluice:q:beats', ms, ARGV[1])
local dead = redis.call('ZRANGEBYSCORE', 'sluice:q:beats', '-inf', ms - ARGV[2])
return {time[1] * 1000000 + time[2], added, redis.call('ZCARD', 'sluice:q:beats') - #dead, dead}
