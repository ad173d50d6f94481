-- gshare: sizes such as --gres=gshare:0.5 become shards. If there is a cli_filter.lua, add this before its last `return`.
do
@RULES@
   local function rewrite(options)
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
