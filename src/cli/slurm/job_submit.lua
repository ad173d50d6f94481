-- gshare: slurmctld turns sizes such as --gres=gshare:0.5 into shards, and refuses impossible ones. If there is a
-- job_submit.lua, add this before its last `return`.
do
@RULES@
   -- Memory of the largest GPU that jobs can have, in MiB; 0 if unknown.
   local MEMORY = @MEMORY@

   -- Why a job with these resources cannot have this much memory on a GPU; nil if it can, or if MEMORY is unknown.
   local function too_much(gres, memory, several)
      local number, unit = (memory or ""):match("^(%d*%.?%d+)%s*([kKmMgGtT])i?[bB]?$")
      local shards = tonumber((gres or ""):match("shard:(%d+)") or (gres or ""):match("shard:[^,]*:(%d+)"))
      local factor = {k = 1 / 1024, m = 1, g = 1024, t = 1024 * 1024}
      if not number or not shards or MEMORY == 0 then return end
      local most = math.floor(MEMORY * shards / PER_GPU)
      local needs = tonumber(number) * factor[unit:lower()]
      if needs > most then
         local part = math.ceil(needs / MEMORY * PER_GPU) / PER_GPU
         local how = (several or part > 1) and "less memory" or part == 1 and "--gres=gpu:1"
            or string.format("--gres=gshare:%g", part)
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
      local by_task = job.tres_per_task or ""
      why = too_much(all .. by_task, memory_of(job), by_task ~= "")
      if why then return why end
      if all ~= "" and all ~= job.tres_per_node then job.tres_per_node = all end
   end

   -- Whether a job has GPUs, as far as its request says: with --exclusive it may have all of a node.
   local function has_gpus(job)
      for _, part in ipairs({"tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task"}) do
         for word in (job[part] or ""):gmatch("[^,]+") do if is_part(word) then return true end end
      end
      return job.shared == 0
   end

   -- Slurm passes the job as the first argument. The site's own function may give it GPUs.
   local function before(next)
      return function(job, ...)
         local why = rewrite(job)
         local code = not why and next and next(job, ...) or slurm.SUCCESS
         if not why and code == slurm.SUCCESS and memory_of(job) and not has_gpus(job) then
            why = "--gshare-mem is the memory of a part of a GPU, and the job has none. Add --gres=gshare:0.5"
         end
         if why then slurm.log_user("gshare: %s", why) end
         return why and slurm.ERROR or code
      end
   end
   slurm_job_submit = before(slurm_job_submit)
   slurm_job_modify = before(slurm_job_modify)
end
