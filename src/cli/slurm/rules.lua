   local PER_GPU = @SHARDS@

   -- Rewrites one word of --gres; nil and the reason if it cannot.
   local function rewritten(word)
      local type, rest = word:match("^(gres[:/])(.*)$")
      if not type then type, rest = "", word end
      local shards = tonumber(rest:match("^shard:.*:(%d+)$") or rest:match("^shard:(%d+)$"))
      if shards and shards > PER_GPU then
         return nil, rest .. " is more than one GPU, which has " .. PER_GPU .. " shards. Write gpu:1 or gpu:2"
      end
      local size = rest == "gshare" and "1" or rest:match("^gshare:(.*)$")
      if not size then return word end
      local several, part = size:match("^(%d+)x(%d*%.?%d+)$")
      if several and tonumber(part) < 1 and tonumber(several) > 1 then
         return nil, rest .. " is a part of each of several GPUs, and Slurm gives a job shards of one. Write gshare:"
            .. part .. " or gpu:" .. several
      end
      local gpus = size:match("^%d*%.?%d+$") and tonumber(size)
      if several then gpus = tonumber(several) * tonumber(part) end
      if not gpus or gpus <= 0 then
         return nil, rest .. " is not a part of a GPU. Write gshare:0.5"
      end
      if gpus == math.floor(gpus) then return string.format("%sgpu:%d", type, gpus) end
      if gpus > 1 then
         return nil, rest .. " is on several GPUs, and Slurm gives a job shards of one. Write gpu:" .. math.ceil(gpus)
      end
      return string.format("%sshard:%d", type, math.max(1, math.floor(gpus * PER_GPU + 0.5)))
   end

   -- Whether a word of --gres stands for GPUs.
   local function is_part(word)
      local name = word:gsub("^gres[:/]", ""):match("^[^:=]*")
      return name == "gpu" or name == "shard"
   end

   -- Rewrites all words of --gres; nil and the reason if it cannot.
   local function all_rewritten(gres)
      local words, parts, size = {}, 0, nil
      for word in (gres or ""):gmatch("[^,]+") do
         local new, why = rewritten(word)
         if not new then return nil, why end
         words[#words + 1] = new
         if new ~= word then size = word end
         if is_part(new) then parts = parts + 1 end
      end
      if size and parts > 1 then
         local all = gres:gsub("gres[:/]", "")
         return nil, all .. " has several sizes, and a job has one. Write " .. size:gsub("^gres[:/]", "")
      end
      return table.concat(words, ",")
   end
