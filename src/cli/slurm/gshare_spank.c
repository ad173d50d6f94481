/*
 * gshare's SPANK plugin: puts the tasks of a job into the job's claim. It is compiled against the headers of the site,
 * since Slurm loads a plugin only into the release that it was compiled for.
 *
 * Arguments in plugstack.conf: gshare=PROGRAM dir=DIR [config=FILE]. DIR/JOB has the instructions for each task,
 * printed by `gshare slurm task`; it is empty for a job without GPUs. There is no prolog: slurmd sleeps for 10 ms after
 * each.
 */
#define _GNU_SOURCE
/* From 26.05 on slurm_load_job() takes a job's number only with this. */
#define SLURM_BACKWARD_COMPAT
#include <slurm/slurm.h>
#include <slurm/spank.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

SPANK_PLUGIN(gshare, 1);

/* Tells `gshare slurm check` the Slurm release for which the plugin was compiled. The number in the mark changes with
 * what `gshare slurm task` prints and `gshare slurm health` reads. */
__attribute__((used)) static const struct {
	char mark[16] __attribute__((nonstring));
	uint32_t version;
} built = { "gshare-plugin-5:", SLURM_VERSION_NUMBER };

extern char **environ;

#define DIR "/run/gshare/slurm"
#define VISIBLE "CUDA_VISIBLE_DEVICES"
#define MOST 65536

/* --gshare-mem and --gshare-limit of this command or step. */
static char *memory, *limit;

static int take_memory(int val, const char *text, int remote)
{
	char *unit = NULL;
	(void)val, (void)remote;
	if (!(text && strtod(text, &unit) > 0 && *unit && strchr("kKmMgGtT", *unit))) {
		slurm_error("gshare: --gshare-mem takes a size with a unit, such as 12G");
		return -1;
	}
	memory = strdup(text);
	return 0;
}

static int take_limit(int val, const char *text, int remote)
{
	char *end = NULL;
	double part = text ? strtod(text, &end) : 0;
	(void)val, (void)remote;
	if (!(part > 0 && part <= 1 && !*end)) {
		slurm_error("gshare: --gshare-limit takes a part of a GPU, such as 0.8");
		return -1;
	}
	limit = strdup(text);
	return 0;
}

static const char *argument(int ac, char **av, const char *name, const char *otherwise)
{
	size_t n = strlen(name);
	for (int i = 0; i < ac; i++)
		if (!strncmp(av[i], name, n) && av[i][n] == '=')
			return av[i] + n + 1;
	return otherwise;
}

/* Makes DIR/bin lead to Slurm's commands, which gshare's service may not have in its PATH. */
static void show_commands(const char *dir)
{
	static const char *const beside[] = { "/../bin", "" };
	char own[4096] = "", bin[5000], path[5100], link[4096];
	if (readlink("/proc/self/exe", own, sizeof(own) - 1) < 0)
		return;
	*strrchr(own, '/') = 0;
	snprintf(link, sizeof(link), "%s/bin", dir);
	for (size_t i = 0; i < sizeof(beside) / sizeof(*beside); i++) {
		snprintf(bin, sizeof(bin), "%s%s", own, beside[i]);
		snprintf(path, sizeof(path), "%s/scontrol", bin);
		if (!access(path, X_OK)) {
			unlink(link);
			if (symlink(bin, link))
				slurm_error("gshare: %s: %m", link);
			return;
		}
	}
}

/* When this process started, in clock ticks since boot: field 22 of its line, where the name has no `)`. */
static unsigned long long started(void)
{
	unsigned long long ticks = 0;
	FILE *stat = fopen("/proc/self/stat", "re");
	if (!stat)
		return 0;
	if (fscanf(stat, "%*[^)]) %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %llu", &ticks) != 1)
		ticks = 0;
	fclose(stat);
	return ticks;
}

/* For `gshare slurm health`: writes to DIR/plugin that slurmd has loaded the plugin: its release, slurmd's process and
 * when that started (another process gets the same number), the file. Removes DIR/node, since the node's resources may
 * have changed. */
static void say_loaded(const char *dir)
{
	char path[4096];
	Dl_info own;
	for (size_t i = 1; i < strlen(dir); i++)
		if (dir[i] == '/')
			mkdir(strndupa(dir, i), 0755);
	mkdir(dir, 0700);
	show_commands(dir);
	snprintf(path, sizeof(path), "%s/node", dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/plugin", dir);
	FILE *file = dladdr(&built, &own) ? fopen(path, "we") : NULL;
	if (file) {
		fprintf(file, "%u.%02u %d %llu %s", built.version >> 16, built.version >> 8 & 0xff, (int)getpid(), started(),
			own.dli_fname);
		fclose(file);
	}
}

/* A table of options would work only in srun. */
int slurm_spank_init(spank_t sp, int ac, char **av)
{
	static struct spank_option options[] = {
		{ "gshare-mem", "SIZE", "GPU memory of the job on each GPU, at most what its shards stand for (12G)", 1, 0,
		  take_memory },
		{ "gshare-limit", "PART", "most compute while others leave it free, where the site allows it (0.8)", 1, 0,
		  take_limit },
	};
	for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
		spank_option_register(sp, &options[i]);
	if (spank_context() == S_CTX_SLURMD)
		say_loaded(argument(ac, av, "dir", DIR));
	return 0;
}

/* Reads to the end, at most MOST bytes, and adds a 0; NULL if out of memory. */
static char *all_of(int fd)
{
	char *text = malloc(MOST + 1);
	size_t have = 0;
	ssize_t n = 0;
	while (text && have < MOST && ((n = read(fd, text + have, MOST - have)) > 0 || (n < 0 && errno == EINTR)))
		have += n > 0 ? (size_t)n : 0;
	if (text)
		text[have] = 0;
	return text;
}

static char *file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	char *text = fd < 0 ? NULL : all_of(fd);
	if (fd >= 0)
		close(fd);
	return text;
}

/* Writes a temporary file and renames it, so that no reader sees a part of it. */
static void keep(const char *path, const char *text)
{
	char own[4096];
	snprintf(own, sizeof(own), "%s.%d", path, (int)getpid());
	int fd = open(own, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
	if (fd >= 0)
		close(fd);
	if (n != (ssize_t)strlen(text) || rename(own, path))
		unlink(own);
}

/* slurmctld's record of a job on this node: its GPUs or shards (empty if none), and what else determines its limits. */
struct books {
	char *gres, *account, *partition, *qos;
};

static char *copy(const char *text)
{
	return strdup(text ? text : "");
}

/* SHOW_LOCAL: does not query whether the cluster belongs to a federation. */
static int look_up(const char *node, uint32_t job, struct books *of)
{
	job_info_msg_t *jobs = NULL;
	if (slurm_load_job(&jobs, job, SHOW_DETAIL | SHOW_LOCAL) == SLURM_SUCCESS) {
		for (uint32_t i = 0; !of->gres && i < jobs->record_count; i++) {
			job_info_t *one = &jobs->job_array[i];
			/* Its type differs between releases. */
			__typeof__(slurm_hostlist_create("")) names = slurm_hostlist_create(one->nodes);
			int at = names ? slurm_hostlist_find(names, node) : -1;
			if (one->job_id == job && at >= 0) {
				of->gres = copy((uint32_t)at < one->gres_detail_cnt ? one->gres_detail_str[at] : NULL);
				of->account = copy(one->account);
				of->partition = copy(one->partition);
				of->qos = copy(one->qos);
			}
			if (names)
				slurm_hostlist_destroy(names);
		}
		slurm_free_job_info_msg(jobs);
	}
	return of->gres && of->account && of->partition && of->qos;
}

/* The node's resources. slurmctld is asked once: a change needs a restart of slurmd. */
static char *resources(const char *dir, const char *node)
{
	char path[4096];
	node_info_msg_t *nodes = NULL;
	snprintf(path, sizeof(path), "%s/node", dir);
	char *has = file(path);
	if (!has && slurm_load_node_single(&nodes, (char *)node, SHOW_DETAIL | SHOW_LOCAL) == SLURM_SUCCESS) {
		if (nodes->record_count == 1)
			keep(path, has = copy(nodes->node_array[0].gres));
		slurm_free_node_info_msg(nodes);
	}
	return has;
}

/* Instructions for each task of this step; while `gshare slurm task` runs, its process and the pipe for its output. */
static char *todo;
static pid_t child;
static int answer = -1, parts;

/* Without an answer only jobs with shards are refused: Slurm itself restricts other jobs to their GPUs. */
static void no_answer(void)
{
	todo = parts ? copy("refuse gshare: its program does not run on this node, so this job was not started") : NULL;
}

/* Starts `gshare slurm task`, which makes or finds the claim. */
static int ask(int ac, char **av, const char *node, const char *has, uint32_t job, uid_t uid, const struct books *of,
	       int is_extern)
{
	char number[16], user[16];
	const char *program = argument(ac, av, "gshare", "/usr/bin/gshare");
	const char *config = argument(ac, av, "config", NULL);
	const char *words[33] = { program, "slurm", "task", "--job", number, "--uid", user, "--host", node,
				  "--gres", of->gres, "--node", has, "--account", of->account,
				  "--queue", of->partition, "--queue", of->qos };
	const char *options[][2] = { { "--mem", memory }, { "--limit", limit }, { "--config", config } };
	int ends[2];
	size_t n = 19;
	posix_spawn_file_actions_t actions;

	for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++)
		if (options[i][1]) {
			words[n++] = options[i][0];
			words[n++] = options[i][1];
		}
	if (is_extern)
		words[n++] = "--extern";
	snprintf(number, sizeof(number), "%u", job);
	snprintf(user, sizeof(user), "%u", (unsigned)uid);
	if (pipe2(ends, O_CLOEXEC))
		return 0;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
	int failed = posix_spawn(&child, program, &actions, NULL, (char **)words, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	if (failed)
		close(ends[0]);
	else
		answer = ends[0];
	return !failed;
}

/* Whether Slurm shows this step a GPU. */
static int shows_gpus(spank_t sp)
{
	char value[4096];
	return spank_getenv(sp, "SLURM_JOB_GPUS", value, sizeof(value)) != ESPANK_ENV_NOEXIST ||
	       spank_getenv(sp, "SLURM_STEP_GPUS", value, sizeof(value)) != ESPANK_ENV_NOEXIST;
}

/* The step `extern` of a job begins before all others, and Slurm does not tell it the options of the job. The next step
 * does: with options, it asks again. Returns whether it must; takes the mark away otherwise. */
static int is_first(const char *path, char *text)
{
	char *mark = strstr(text, "\nextern\n");
	if (!mark || memory || limit)
		return mark != NULL;
	memmove(mark + 1, mark + strlen("\nextern\n"), strlen(mark + strlen("\nextern\n")) + 1);
	keep(path, text);
	return 0;
}

/* Whether a step lacks the option or has the same value as its job. */
static int is_the_jobs(const char *text, const char *key, const char *own)
{
	const char *at = strstr(text, key);
	size_t n = own ? strlen(own) : 0;
	return !own || (at && !strncmp(at += strlen(key), own, n) && at[n] == '\n');
}

/* Runs in slurmstepd, as root and in the job's cgroup. */
static void begin(spank_t sp, int ac, char **av)
{
	char path[4096];
	const char *dir = argument(ac, av, "dir", DIR), *node = getenv("SLURMD_NODENAME");
	struct books of = { 0 };
	uint32_t job = 0, step = 0;
	uid_t uid = -1;
	char *has = NULL;

	if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS || spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS)
		return;
	snprintf(path, sizeof(path), "%s/%u", dir, job);
	todo = file(path);
	int is_extern = spank_get_item(sp, S_JOB_STEPID, &step) == ESPANK_SUCCESS && step == SLURM_EXTERN_CONT;
	if (todo && (is_extern || !is_first(path, todo))) {
		if (*todo && (!is_the_jobs(todo, "\nmem ", memory) || !is_the_jobs(todo, "\nlimit ", limit)))
			todo = copy("refuse gshare: --gshare-mem and --gshare-limit are for the whole job: give them to sbatch, "
				    "salloc or the srun that makes the job");
		return;
	}
	has = node ? resources(dir, node) : NULL;
	if (has && !strstr(has, "gpu"))
		return;
	if (!has || !look_up(node, job, &of)) {
		if (shows_gpus(sp))
			todo = copy("refuse gshare: slurmctld does not answer which GPUs this job has, so it was not started");
	} else if (!strstr(of.gres, "gpu") && !strstr(of.gres, "shard")) {
		keep(path, "");
	} else {
		parts = strstr(of.gres, "shard") != NULL;
		if (!ask(ac, av, node, has, job, uid, &of, is_extern))
			no_answer();
	}
	free(has);
	free(of.gres);
	free(of.account);
	free(of.partition);
	free(of.qos);
}

/* In srun, sbatch and salloc, sets variables that job_submit.lua finds in the job's spank_job_env. */
int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	if (spank_remote(sp)) {
		begin(sp, ac, av);
		return 0;
	}
	if (memory)
		spank_job_control_setenv(sp, "GSHARE_MEM", memory, 1);
	if (limit)
		spank_job_control_setenv(sp, "GSHARE_LIMIT", limit, 1);
	return 0;
}

/* Reads the answer. */
static void hear(void)
{
	int status = 0;
	if (answer < 0)
		return;
	todo = all_of(answer);
	close(answer);
	answer = -1;
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (!(todo && WIFEXITED(status) && WEXITSTATUS(status) == 0))
		no_answer();
}

/* Just before slurmstepd creates the tasks, so that both work in parallel until then. */
int slurm_spank_user_init(spank_t sp, int ac, char **av)
{
	(void)sp, (void)ac, (void)av;
	hear();
	return 0;
}

/* The `extern` step has no user_init. A claim that is made after the job's epilog would stay. */
int slurm_spank_exit(spank_t sp, int ac, char **av)
{
	(void)sp, (void)ac, (void)av;
	hear();
	return 0;
}

/* The return value of an `optional` plugin cannot fail a launch, so this ends the task's own process. */
static void refuse(const char *why)
{
	slurm_error("%s", why);
	_exit(1);
}

static void prepend(spank_t sp, const char *name, const char *value)
{
	char *before = malloc(MOST), *both = NULL;
	if (before && spank_getenv(sp, name, before, MOST) == ESPANK_SUCCESS && *before &&
	    asprintf(&both, "%s:%s", value, before) > 0)
		value = both;
	spank_setenv(sp, name, value, 1);
	free(both);
	free(before);
}

static void join(const char *cgroup)
{
	char path[4096], pid[16];
	int n = snprintf(pid, sizeof(pid), "%d", (int)getpid());
	snprintf(path, sizeof(path), "%s/cgroup.procs", cgroup);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, pid, n) != n)
		refuse("gshare: the job's cgroup cannot be entered; the job was not started");
	close(fd);
}

/* Mounts one of gshare's libraries over the driver's, in the task's own mount namespace. */
static void lay(const char *from, const char *on)
{
	static int own;
	if (!own && (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_SLAVE, NULL)))
		refuse("gshare: strict limits need a mount namespace, which cannot be made; the job was not started");
	own = 1;
	if (mount(from, on, NULL, MS_BIND, NULL))
		refuse("gshare: strict limits cannot be set, since a library cannot be mounted; the job was not started");
}

/* "2=GPU-..." for each of the job's GPUs, if Slurm numbers them among all GPUs of the node. If it constrains devices, and
 * so counts those that the task can open, "/dev/nvidia2=GPU-...". NULL at the end. */
static char *uuids[65];

static void apply(spank_t sp, char *text)
{
	char *rest = NULL;
	size_t gpus = 0;
	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		char *value = strchr(line, ' ');
		if (!value)
			continue;
		*value++ = 0;
		char *second = strchr(value, '=');
		if (!strcmp(line, "refuse"))
			refuse(value);
		else if (!strcmp(line, "join"))
			join(value);
		else if (!strcmp(line, "gpu") && gpus + 1 < sizeof(uuids) / sizeof(*uuids))
			uuids[gpus++] = strdup(value);
		else if (second && (*second = 0, !strcmp(line, "set")))
			spank_setenv(sp, value, second + 1, 1);
		else if (second && !strcmp(line, "bind"))
			lay(value, second + 1);
		else if (second && !strcmp(line, "prepend"))
			prepend(sp, value, second + 1);
	}
}

/* Runs in each task, as root, before the task switches to its user. */
int slurm_spank_task_init_privileged(spank_t sp, int ac, char **av)
{
	(void)ac, (void)av;
	if (spank_remote(sp) && todo)
		apply(sp, todo);
	return 0;
}

/* After Slurm has chosen the task's GPUs: replaces their numbers by UUIDs, since CUDA counts other GPUs than Slurm. */
int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	char before[4096], after[8192] = "", *rest = NULL;
	size_t open = 0;
	if (!uuids[0] || spank_getenv(sp, VISIBLE, before, sizeof(before)) != ESPANK_SUCCESS)
		return 0;
	for (char **one = uuids; *one; one++) {
		char *uuid = **one == '/' ? strchr(*one, '=') : NULL;
		if (!uuid)
			continue;
		*uuid = 0;
		if (!access(*one, R_OK) && asprintf(one, "%zu=%s", open++, uuid + 1) < 0)
			return 0;
	}
	for (char *word = strtok_r(before, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
		const char *name = word;
		size_t n = strlen(word);
		for (char **one = uuids; *one; one++)
			if (!strncmp(*one, word, n) && (*one)[n] == '=')
				name = *one + n + 1;
		n = strlen(after);
		snprintf(after + n, sizeof(after) - n, "%s%s", n ? "," : "", name);
	}
	spank_setenv(sp, VISIBLE, after, 1);
	return 0;
}
