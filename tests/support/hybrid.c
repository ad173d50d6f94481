/* slurmd refuses cgroup/v2 on a machine that also has cgroups of version 1. This library hides those from slurmd. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int open(const char *path, int flags, ...)
{
	int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
	char line[4096];
	size_t n = strlen(path);
	va_list more;
	va_start(more, flags);
	int mode = va_arg(more, int);
	va_end(more);

	FILE *all = strncmp(path, "/proc/", 6) || n < 7 || strcmp(path + n - 7, "/cgroup") ? NULL : fopen(path, "re");
	int left = all ? memfd_create("cgroup", MFD_CLOEXEC) : -1;
	while (left >= 0 && fgets(line, sizeof(line), all))
		if (!strncmp(line, "0::", 3) && write(left, line, strlen(line)) < 0)
			return -1;
	if (all)
		fclose(all);
	if (left < 0)
		return real(path, flags, mode);
	lseek(left, 0, SEEK_SET);
	return left;
}
