-- gshare: sizes such as --gres=gshare:0.5 become shards. If there is a cli_filter.lua, add this before its last `return`.
do
   local PER_GPU = @SHARDS@

   -- One word of --gres, or nothing and why not.
   local function rewritten(word)
      local rest = word:gsub("^gres[:/]", "")
      local shards = tonumber(rest:match("^shard:.*:(%d+)$") or rest:match("^shard:(%d+)$"))
      if shards and shards > PER_GPU then
         return nil, rest .. " is more than one GPU, which has " .. PER_GPU .. " shards. Write gpu:1 or gpu:2"
      end
      local size = rest == "gshare" and "1" or rest:match("^gshare:(.*)$")
      if not size then return word end
      local gpus = size:match("^%d*%.?%d+$") and tonumber(size)
      if not gpus or gpus <= 0 then
         return nil, rest .. " is not a part of a GPU. Write gshare:0.5"
      end
      if gpus == math.floor(gpus) then return string.format("gpu:%d", gpus) end
      if gpus > 1 then
         return nil, rest .. " is on several GPUs, and Slurm gives a job shards of one. Write gpu:" .. math.ceil(gpus)
      end
      return string.format("shard:%d", math.max(1, math.floor(gpus * PER_GPU + 0.5)))
   end

   local function rewrite(options)
      for _, other in ipairs({"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"}) do
         if tostring(options[other]):find("gshare", 1, true) then return "write the size as --gres=gshare:0.5" end
      end
      local words = {}
      for word in (options["gres"] or ""):gmatch("[^,]+") do
         local new, why = rewritten(word)
         if not new then return why end
         words[#words + 1] = new
      end
      local all = table.concat(words, ",")
      if all ~= "" and all ~= options["gres"] then options["gres"] = all end
   end

   local submit = slurm_cli_pre_submit
   function slurm_cli_pre_submit(options, offset)
      local why = rewrite(options)
      if why then
         slurm.log_error("gshare: %s", why)
         return slurm.ERROR
      end
      return submit and submit(options, offset) or slurm.SUCCESS
   end
   slurm_cli_setup_defaults = slurm_cli_setup_defaults or function() return slurm.SUCCESS end
   slurm_cli_post_submit = slurm_cli_post_submit or function() return slurm.SUCCESS end
end
