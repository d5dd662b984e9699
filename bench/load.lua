-- Posts one body over and over and checks every answer.
-- Arguments after "--": body, number of markers in a whole answer, its tail, marker.

local threads = {}

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

function response(status, headers, body)
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
  for _, thread in ipairs(threads) do
    wrong = wrong + thread:get("bad")
    example = example .. thread:get("first_bad")
  end
  io.write(string.format("RESULT requests=%d\n", summary.requests))
  io.write(string.format("RESULT duration_us=%d\n", summary.duration))
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
