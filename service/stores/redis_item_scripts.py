"""The Lua scripts of the item log: each is one step however many replicas call it, and Redis persists it as a whole.

`service.stores.memory_items` is the readable twin; the contract tests keep them alike.
"""

# KEYS: meta, items, claims, sids. ARGV: generation, floor, number of changes, then per change: kind and eight fields.
APPEND = """
local meta, items, claims, sids = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local state = redis.call('HMGET', meta, 'generation', 'version')
if state[1] ~= ARGV[1] then return 'lost' end
local version, floor, answers = tonumber(state[2]), tonumber(ARGV[2]), {}
local function text(number) return string.format('%d', number) end
local function append(op, id, sid, since, base, body)
  local previous = version
  version = version + 1
  redis.call('XADD', items, '*', 'version', text(version), 'previous', text(previous), 'op', op, 'item_id', id,
    'sid', sid, 'since', text(since or version), 'base', base, 'body', body)
  redis.call('HSET', meta, 'version', text(version))
end
local function count(sid, step)
  if redis.call('HINCRBY', sids, sid, step) <= 0 then redis.call('HDEL', sids, sid) end
end
local function choose(prefix, free, taken)
  local best, least
  for extra, codes in ipairs({free, taken}) do
    for code in string.gmatch(codes, '%d+') do
      local held = tonumber(redis.call('HGET', sids, prefix .. code) or 0) + extra - 1
      if held == 0 then return prefix .. code end
      if not least or held < least then best, least = prefix .. code, held end
    end
  end
  return best
end
local function claim_of(id)
  local claim = redis.call('HGET', claims, id)
  return claim and cjson.decode(claim) or nil
end
local function set_claim(id, before, op, sid, hash, since, base)
  if before and before.counted and (op ~= 'put' or before.sid ~= sid) then count(before.sid, -1) end
  local counted = op == 'put' and base == '0'
  if counted and not (before and before.counted and before.sid == sid) then count(sid, 1) end
  if op == 'reset' then
    redis.call('HDEL', claims, id)
  else
    redis.call('HSET', claims, id, cjson.encode({sid = sid, hash = hash, version = version + 1, gone = op == 'delete',
      since = since or version + 1, counted = counted}))
  end
end
local function put(id, hash, base_hash, base_sid, prefix, free, taken, body)
  local claim, based = claim_of(id), base_sid ~= ''
  local known, known_hash, live, since = base_sid, base_hash, based, nil
  if claim then
    known, known_hash, live = based and base_sid or claim.sid, claim.hash, not claim.gone
  end
  if live and known_hash == hash then return {'unchanged', known, ''} end
  local sid = known
  local keeps = known ~= '' and (based or (string.match(known, '^(.*,)') or '') == prefix)
  if not keeps then sid = choose(prefix, free, taken) end
  if claim and live and claim.sid == sid then since = claim.since end
  set_claim(id, claim, 'put', sid, hash, since, based and '1' or '0')
  append('put', id, sid, since, based and '1' or '0', body)
  return {live and 'updated' or 'created', sid, text(version)}
end
local function remove(id, base_sid)
  local claim = claim_of(id)
  local live = base_sid ~= ''
  if claim then live = not claim.gone end
  if not live then return {'absent', claim and claim.sid or '', ''} end
  local sid = base_sid ~= '' and base_sid or claim.sid
  set_claim(id, claim, 'delete', sid, '', nil, '0')
  append('delete', id, sid, nil, base_sid ~= '' and '1' or '0', '')
  return {'deleted', sid, text(version)}
end
local function restore(id, ceiling, op, sid, hash, since, base, body)
  local claim = claim_of(id)
  if claim and claim.version > tonumber(ceiling) then return {'conflict', claim.sid, ''} end
  set_claim(id, claim, op, sid, hash, tonumber(since), base)
  append(op, id, sid, tonumber(since), base, body)
  return {'restored', sid, text(version)}
end
if floor > 0 and floor >= version then
  local previous = version
  redis.call('HSET', meta, 'version', text(floor + 1))
  redis.call('XADD', items, '*', 'version', text(floor + 1), 'previous', text(previous), 'op', 'mark', 'item_id', '',
    'sid', '', 'since', '0', 'base', '0', 'body', '')
  version = floor + 1
end
for change = 1, tonumber(ARGV[3]) do
  local at = 4 + (change - 1) * 9
  local kind, a = ARGV[at], {}
  for field = 1, 8 do a[field] = ARGV[at + field] end
  if kind == 'put' then answers[change] = put(a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8])
  elseif kind == 'remove' then answers[change] = remove(a[1], a[2])
  else answers[change] = restore(a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8]) end
end
return answers
"""

# KEYS: meta. ARGV: generation. Begin an empty log unless there is one.
BEGIN = """
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'version', '0', 'base', '0', 'snapshots', '[]')
end
return redis.call('HMGET', KEYS[1], 'generation', 'version', 'base', 'snapshots')
"""

# KEYS: meta, items, new snapshot. ARGV: generation, snapshots as read, as they shall be, first position to keep.
SAVE = """
local state = redis.call('HMGET', KEYS[1], 'generation', 'snapshots')
if state[1] ~= ARGV[1] or state[2] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'snapshots', ARGV[3])
redis.call('PERSIST', KEYS[3])
redis.call('XTRIM', KEYS[2], 'MINID', ARGV[4])
return 1
"""

# KEYS: meta, items, claims, sids, and the staged snapshot, claims and sids. ARGV: generation, version, snapshots.
REPUBLISH = """
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'version', ARGV[2], 'base', ARGV[2], 'snapshots', ARGV[3])
for place = 3, 4 do
  if redis.call('EXISTS', KEYS[place + 3]) == 1 then
    redis.call('RENAME', KEYS[place + 3], KEYS[place])
    redis.call('PERSIST', KEYS[place])
  end
end
redis.call('PERSIST', KEYS[5])
return 1
"""
