-- Posts one body over and over and checks every answer.
-- Arguments after "--": body, number of markers in a whole answer, its tail, marker, lead-in in
-- seconds. Answers of the lead-in are checked as all are; how many they were, and how long it took
-- until the first answer after it, is told beside the whole.

local ffi = require("ffi")
ffi.cdef("typedef struct { long seconds, nanoseconds; } moment; int clock_gettime(int, moment *);")
local MONOTONIC = 1

local threads = {}
local moment = ffi.new("moment")

local function now_us()
  ffi.C.clock_gettime(MONOTONIC, moment)
  return tonumber(moment.seconds) * 1e6 + tonumber(moment.nanoseconds) / 1e3
end

function setup(thread)
  table.insert(threads, thread)
end

function init(args)
  wrk.method = "POST"
  wrk.body = args[1]
  wrk.headers["Content-Type"] = "application/json"
  request_bytes = wrk.format(nil, nil)
  markers = tonumber(args[2])
  tail = args[3]
  marker = args[4]
  bad = 0
  first_bad = ""
  began_us = now_us()
  leading = tonumber(args[5]) > 0
  lead_in_us = tonumber(args[5]) * 1e6
  lead_requests = 0
  lead_us = 0
end

function request()
  return request_bytes
end

local function is_whole(body)
  local found = 0
  local at = 1
  while true do
    local _, last = string.find(body, marker, at, true)
    if not last then break end
    found = found + 1
    at = last + 1
  end
  local ending = string.match(string.sub(body, -64), "^(.-)%s*$")
  return found == markers and string.sub(ending, -#tail) == tail
end

local function lead_in()
  lead_requests = lead_requests + 1
  lead_us = now_us() - began_us
  leading = lead_us < lead_in_us
end

function response(status, headers, body)
  if leading then lead_in() end
  if status ~= 200 or not is_whole(body) then
    bad = bad + 1
    if bad == 1 then
      first_bad = status .. ": " .. string.sub(body, 1, 200) .. " ... " .. string.sub(body, -100)
    end
  end
end

function done(summary, latency, requests)
  local wrong = 0
  local example = ""
  local lead_requests = 0
  local lead_us = 0
  for _, thread in ipairs(threads) do
    wrong = wrong + thread:get("bad")
    example = example .. thread:get("first_bad")
    lead_requests = lead_requests + thread:get("lead_requests")
    lead_us = math.max(lead_us, thread:get("lead_us"))
  end
  io.write(string.format("RESULT requests=%d\n", summary.requests))
  io.write(string.format("RESULT duration_us=%d\n", summary.duration))
  io.write(string.format("RESULT lead_requests=%d\n", lead_requests))
  io.write(string.format("RESULT lead_us=%d\n", lead_us))
  io.write(string.format("RESULT bytes=%d\n", summary.bytes))
  io.write(string.format("RESULT bad=%d\n", wrong))
  for _, kind in ipairs({"connect", "read", "write", "status", "timeout"}) do
    io.write(string.format("RESULT %s=%d\n", kind, summary.errors[kind]))
  end
  for _, p in ipairs({50, 90, 99}) do
    io.write(string.format("RESULT p%d_us=%d\n", p, latency:percentile(p)))
  end
  io.write("EXAMPLE " .. string.gsub(example, "%s+", " ") .. "\n")
end
