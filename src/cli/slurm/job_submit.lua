-- gshare: slurmctld turns sizes such as --gres=gshare:0.5 into shards, and refuses impossible ones. If there is a
-- job_submit.lua, add this before its last `return`.
do
@RULES@
   -- Memory of the largest GPU that jobs can have, in MiB; 0 if unknown.
   local MEMORY = @MEMORY@

   -- Why a job with these resources cannot have this much memory on a GPU; nil if it can, or if MEMORY is unknown.
   local function too_much(gres, memory)
      local number, unit = (memory or ""):match("^(%d*%.?%d+)%s*([kKmMgGtT])i?[bB]?$")
      local shards = tonumber((gres or ""):match("shard:(%d+)") or (gres or ""):match("shard:[^,]*:(%d+)"))
      local factor = {k = 1 / 1024, m = 1, g = 1024, t = 1024 * 1024}
      if not number or not shards or MEMORY == 0 then return end
      local most = math.floor(MEMORY * shards / PER_GPU)
      local needs = tonumber(number) * factor[unit:lower()]
      if needs > most then
         local part = math.ceil(needs / MEMORY * 100) / 100
         local how = part < 1 and string.format("--gres=gshare:%g", part) or part == 1 and "--gres=gpu:1" or "less memory"
         return string.format("--gshare-mem %s is more than the memory of this part of a GPU: %d MiB, for %d of %d shards. Ask for %s",
            memory, most, shards, PER_GPU, how)
      end
   end

   -- The job's --gshare-mem, an option of the plugin.
   local function memory_of(job)
      for i = 0, (job.spank_job_env_size or 0) - 1 do
         local size = tostring(job.spank_job_env[i]):match("^GSHARE_MEM=(.*)$")
         if size then return size end
      end
   end

   local function rewrite(job)
      for _, other in ipairs({"tres_per_job", "tres_per_socket", "tres_per_task"}) do
         if tostring(job[other]):find("gshare", 1, true) then return "write the size as --gres=gshare:0.5" end
      end
      local all, why = all_rewritten(job.tres_per_node)
      if not all then return why end
      local memory, other = memory_of(job), ""
      for _, part in ipairs({"tres_per_job", "tres_per_socket", "tres_per_task"}) do other = other .. (job[part] or "") end
      if memory and not (all .. other):find("gpu") and not (all .. other):find("shard") then
         return "--gshare-mem is the memory of a part of a GPU, and the job has none. Add --gres=gshare:0.5"
      end
      why = too_much(all .. (job.tres_per_task or ""), memory)
      if why then return why end
      if all ~= "" and all ~= job.tres_per_node then job.tres_per_node = all end
   end

   -- Slurm passes the job as the first argument.
   local function before(next)
      return function(job, ...)
         local why = rewrite(job)
         if why then
            slurm.log_user("gshare: %s", why)
            return slurm.ERROR
         end
         return next and next(job, ...) or slurm.SUCCESS
      end
   end
   slurm_job_submit = before(slurm_job_submit)
   slurm_job_modify = before(slurm_job_modify)
end
