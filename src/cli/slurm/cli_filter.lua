-- gshare: sizes such as --gres=gshare:0.5 become shards. If there is a cli_filter.lua, add this before its last `return`.
do
@RULES@
   -- Writes gshare:2x0.5 as Slurm 24.11 can have it: 2 tasks on each node, each with shards of another GPU. Whether it
   -- has; the reason if the job has other tasks.
   local function by_task(options)
      local several, part = (options["gres"] or ""):gsub("^gres[:/]", ""):match("^gshare:(%d+)x(%d*%.?%d+)$")
      if not several or tonumber(several) < 2 or tonumber(part) <= 0 or tonumber(part) >= 1 then return false end
      -- Options that this Slurm does not know stay unset.
      options["tres-per-task"] = rewritten("gres/gshare:" .. part)
      if not options["tres-per-task"] then return false end
      options["gres-flags"] = "one-task-per-sharing"
      if options["gres-flags"] ~= "one-task-per-sharing" then return false end
      local nodes = options["nodes"]
      if options["ntasks-per-node"] ~= several and (options["ntasks"] ~= several or nodes ~= "1" and nodes ~= "1-0") then
         return false, "gshare:" .. several .. "x" .. part .. " is for " .. several
            .. " tasks on each node, one for each GPU. Add -N1 -n" .. several .. " or --ntasks-per-node=" .. several
      end
      if nodes == "1-0" then options["nodes"] = "1" end
      options["gres"] = "none"
      return true
   end

   local function rewrite(options)
      local done, wrong = by_task(options)
      if done or wrong then return wrong end
      for _, other in ipairs({"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task"}) do
         if tostring(options[other]):find("gshare", 1, true) then return "write the size as --gres=gshare:0.5" end
      end
      local all, why = all_rewritten(options["gres"])
      if not all then return why end
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
