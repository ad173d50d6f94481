/*
 * gshare's SPANK plugin: puts the tasks of a job into the job's claim. It is compiled against the headers of the site,
 * since Slurm loads a plugin only into the release that it was compiled for.
 *
 * Arguments in plugstack.conf: gshare=PROGRAM dir=DIR [config=FILE]. The prolog writes DIR/JOB.job for jobs that have
 * GPUs; jobs without GPUs are not touched. DIR/JOB has what is done to each task, as `gshare slurm task` printed it.
 */
#define _GNU_SOURCE
#include <slurm/slurm.h>
#include <slurm/spank.h>

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

SPANK_PLUGIN(gshare, 1);

/* By this `gshare slurm check` sees for which release the plugin was compiled. */
__attribute__((used)) static const struct {
	char mark[16];
	uint32_t version;
} built = { "gshare-built-for", SLURM_VERSION_NUMBER };

extern char **environ;

#define DIR "/run/gshare/slurm"
#define VISIBLE "CUDA_VISIBLE_DEVICES"
#define MOST 65536

/* --gshare-mem and --gshare-limit as this command or step was given them. */
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

/* For the prolog: says in DIR/plugin that slurmd has loaded the plugin, from which file, and for which release. A callback
 * for each job would make slurmd start one more program for it. */
static void say_loaded(const char *dir)
{
	char path[4096];
	Dl_info own;
	for (size_t i = 1; i < strlen(dir); i++)
		if (dir[i] == '/')
			mkdir(strndupa(dir, i), 0755);
	mkdir(dir, 0700);
	snprintf(path, sizeof(path), "%s/plugin", dir);
	FILE *file = dladdr(&built, &own) ? fopen(path, "we") : NULL;
	if (file) {
		fprintf(file, "%u.%02u %s", built.version >> 16, built.version >> 8 & 0xff, own.dli_fname);
		fclose(file);
	}
}

/* A table would give the options to srun alone. */
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

/* In srun, sbatch and salloc: slurmctld's job_submit and the prolog, as SPANK_GSHARE_MEM, see these. */
int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void)ac, (void)av;
	if (memory)
		spank_job_control_setenv(sp, "GSHARE_MEM", memory, 1);
	if (limit)
		spank_job_control_setenv(sp, "GSHARE_LIMIT", limit, 1);
	return 0;
}

/* All that can be read, with a 0 at its end; NULL without memory. */
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

/* slurmctld's books of a job on this node: what it was given, what the node has, and the rest by which it is limited. */
struct books {
	char *gres, *has, *account, *partition, *qos;
};

static char *copy(const char *text)
{
	return strdup(text ? text : "");
}

/* Asked once for each job and node. */
static int look_up(const char *node, uint32_t job, struct books *of)
{
	job_info_msg_t *jobs = NULL;
	node_info_msg_t *nodes = NULL;
	if (slurm_load_node_single(&nodes, (char *)node, SHOW_DETAIL) == SLURM_SUCCESS) {
		if (nodes->record_count == 1 && nodes->node_array[0].gres)
			of->has = strdup(nodes->node_array[0].gres);
		slurm_free_node_info_msg(nodes);
	}
	if (slurm_load_job(&jobs, job, SHOW_DETAIL) == SLURM_SUCCESS) {
		for (uint32_t i = 0; !of->gres && i < jobs->record_count; i++) {
			job_info_t *one = &jobs->job_array[i];
			/* Its type differs between releases. */
			__typeof__(slurm_hostlist_create("")) names = slurm_hostlist_create(one->nodes);
			int at = names ? slurm_hostlist_find(names, node) : -1;
			if (one->job_id == job && at >= 0 && (uint32_t)at < one->gres_detail_cnt && one->gres_detail_str[at]) {
				of->gres = strdup(one->gres_detail_str[at]);
				of->account = copy(one->account);
				of->partition = copy(one->partition);
				of->qos = copy(one->qos);
			}
			if (names)
				slurm_hostlist_destroy(names);
		}
		slurm_free_job_info_msg(jobs);
	}
	return of->gres && of->has && of->account && of->partition && of->qos;
}

/* Has gshare make the claim, or find it. Returns what it prints; NULL if it cannot be run. */
static char *ask(int ac, char **av, uint32_t job, const struct books *of)
{
	char number[16], *text = NULL;
	const char *program = argument(ac, av, "gshare", "/usr/bin/gshare");
	const char *config = argument(ac, av, "config", NULL);
	char *words[] = { (char *)program, "slurm", "task", "--job", number, "--gres", of->gres, "--node", of->has,
			  "--account", of->account, "--queue", of->partition, "--queue", of->qos, config ? "--config" : NULL, (char *)config, NULL };
	int ends[2], status = 0;
	pid_t child;
	posix_spawn_file_actions_t actions;

	snprintf(number, sizeof(number), "%u", job);
	if (pipe2(ends, O_CLOEXEC))
		return NULL;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
	int failed = posix_spawn(&child, program, &actions, NULL, words, environ);
	posix_spawn_file_actions_destroy(&actions);
	close(ends[1]);
	if (!failed) {
		text = all_of(ends[0]);
		while (waitpid(child, &status, 0) < 0 && errno == EINTR)
			;
	}
	close(ends[0]);
	if (!failed && !(WIFEXITED(status) && WEXITSTATUS(status) == 0)) {
		free(text);
		text = NULL;
	}
	return text;
}

/* A plugin that is `optional` cannot fail a launch by its return value; this is the task's own process. */
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

/* "2=GPU-..." for each of the job's GPUs, if Slurm counts all its GPUs of the node; ends with an empty one. */
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
		else if (second && !strcmp(line, "prepend"))
			prepend(sp, value, second + 1);
	}
}

int slurm_spank_slurmd_exit(spank_t sp, int ac, char **av)
{
	char path[4096];
	(void)sp;
	snprintf(path, sizeof(path), "%s/plugin", argument(ac, av, "dir", DIR));
	unlink(path);
	return 0;
}

/* Whether a step has no such option, or the one of its job. */
static int is_the_jobs(const char *record, const char *key, const char *own)
{
	const char *at = strstr(record, key);
	size_t n = own ? strlen(own) : 0;
	return !own || (at && !strncmp(at += strlen(key), own, n) && at[n] == '\n');
}

/* In each task, as root: before the task becomes its user. */
int slurm_spank_task_init_privileged(spank_t sp, int ac, char **av)
{
	char path[4096];
	const char *dir = argument(ac, av, "dir", DIR);
	uint32_t job = 0;
	char *text = NULL;

	if (!spank_remote(sp) || spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS)
		return 0;
	snprintf(path, sizeof(path), "%s/%u.job", dir, job);
	char *record = file(path);
	if (!record)
		return 0;
	if (!is_the_jobs(record, "\nmem=", memory) || !is_the_jobs(record, "\nlimit=", limit))
		refuse("gshare: --gshare-mem and --gshare-limit are for the whole job: give them to sbatch, salloc or the srun "
		       "that makes the job");
	snprintf(path, sizeof(path), "%s/%u", dir, job);
	text = file(path);
	if (!text) {
		/* Its lines: user, node, ... */
		char *rest = NULL, *node = strtok_r(record, "\n", &rest) ? strtok_r(NULL, "\n", &rest) : NULL;
		struct books of = { 0 };
		if (!node || !look_up(node, job, &of))
			refuse("gshare: slurmctld does not answer which GPUs this job has, so it was not started");
		text = ask(ac, av, job, &of);
		/* Slurm itself keeps jobs without shards to their GPUs. */
		if (!text && strstr(of.gres, "shard"))
			refuse("gshare: its program does not run on this node, so this job was not started");
		free(of.gres);
		free(of.has);
		free(of.account);
		free(of.partition);
		free(of.qos);
	}
	if (text)
		apply(sp, text);
	free(record);
	free(text);
	return 0;
}

/* After Slurm has chosen the task's GPUs: names them so that gshare's device filter, by which CUDA counts only the job's
 * GPUs, does not change which they are. */
int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	char before[4096], after[8192] = "", *rest = NULL;
	if (!uuids[0] || spank_getenv(sp, VISIBLE, before, sizeof(before)) != ESPANK_SUCCESS)
		return 0;
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
