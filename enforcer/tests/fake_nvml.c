/* A libnvidia-ml.so.1 with two GPUs; files beside it control their faults:
 *   count    number of GPUs (default 2)
 *   lost-N   GPU N answers "lost" (15); odd-N: looking up GPU N answers "unknown" (999)
 *   hang-N   calls on GPU N do not return while the file is there
 *   gone     every call answers "driver not loaded" (9)
 *   used-N   bytes in use on GPU N
 * GPU 0 is like an H100 (GPM); GPU 1 like an RTX 4090 whose power cannot be read. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef unsigned u32;
typedef unsigned long long u64;
typedef struct { u32 index; } *device;

static struct { u32 index; } devices[2] = {{0}, {1}};
static u32 initialised;

static void beside(char *path, size_t size, const char *name) {
    Dl_info info;
    dladdr((void *)beside, &info);
    const char *end = strrchr(info.dli_fname, '/');
    snprintf(path, size, "%.*s/%s", (int)(end - info.dli_fname), info.dli_fname, name);
}

static int exists(const char *name) {
    char path[4096];
    beside(path, sizeof path, name);
    return access(path, F_OK) == 0;
}

static u64 number(const char *name, u64 otherwise) {
    char path[4096];
    u64 value = otherwise;
    beside(path, sizeof path, name);
    FILE *file = fopen(path, "r");
    if (file) {
        if (fscanf(file, "%llu", &value) != 1) value = otherwise;
        fclose(file);
    }
    return value;
}

static int trouble(device d) {
    char name[32];
    if (!initialised) return 1;
    if (exists("gone")) return 9;
    snprintf(name, sizeof name, "hang-%u", d->index);
    while (exists(name)) usleep(1000);
    snprintf(name, sizeof name, "lost-%u", d->index);
    return exists(name) ? 15 : 0;
}

#define ASK(d) do { int t = trouble(d); if (t) return t; } while (0)

int nvmlInitWithFlags(u32 flags) {
    (void)flags;
    if (exists("gone")) return 9;
    initialised = 1;
    return 0;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "trouble"; }
int nvmlSystemGetDriverVersion(char *out, u32 n) { snprintf(out, n, "580.65.06"); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 13050; return 0; }
int nvmlSystemGetCudaDriverVersion(int *v) { *v = 13050; return 0; }
int nvmlDeviceGetCount_v2(u32 *n) { *n = number("count", 2); return 0; }
int nvmlDeviceGetHandleByIndex_v2(u32 i, device *d) {
    char name[32];
    if (i > 1) return 2;
    snprintf(name, sizeof name, "odd-%u", i);
    if (exists(name)) return 999;
    *d = (device)&devices[i];
    return trouble(*d);
}
int nvmlDeviceGetUUID(device d, char *out, u32 n) {
    ASK(d);
    snprintf(out, n, "GPU-00000000-0000-0000-0000-00000000000%u", d->index);
    return 0;
}
int nvmlDeviceGetName(device d, char *out, u32 n) {
    ASK(d);
    snprintf(out, n, "%s", d->index ? "NVIDIA GeForce RTX 4090" : "NVIDIA H100 80GB HBM3");
    return 0;
}
int nvmlDeviceGetMinorNumber(device d, u32 *minor) { ASK(d); *minor = 5 - d->index; return 0; }
int nvmlDeviceGetPciInfo_v3(device d, void *out) {
    ASK(d);
    memset(out, 0, 36 + 32);
    snprintf((char *)out + 36, 32, "00000000:%02X:00.0", 0x3b + d->index);
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(device d, int *major, int *minor) {
    ASK(d);
    *major = d->index ? 8 : 9;
    *minor = d->index ? 9 : 0;
    return 0;
}
int nvmlDeviceGetNumGpuCores(device d, u32 *n) { ASK(d); *n = d->index ? 16384 : 16896; return 0; }
int nvmlDeviceGetDisplayActive(device d, int *on) { ASK(d); *on = d->index; return 0; }
int nvmlDeviceGetMigMode(device d, u32 *now, u32 *later) {
    ASK(d);
    if (d->index) return 3;
    *now = *later = 0;
    return 0;
}
int nvmlDeviceGetMemoryInfo_v2(device d, void *out) {
    char name[32];
    ASK(d);
    struct { u32 version; u64 total, reserved, free, used; } *m = out;
    snprintf(name, sizeof name, "used-%u", d->index);
    m->total = 1000000;
    m->reserved = 1000;
    m->used = number(name, 300000 + d->index);
    m->free = m->total - m->used;
    return 0;
}
int nvmlDeviceGetUtilizationRates(device d, u32 *rates) { ASK(d); rates[0] = 95; rates[1] = 7; return 0; }
int nvmlDeviceGetTemperature(device d, u32 sensor, u32 *t) { ASK(d); (void)sensor; *t = 61; return 0; }
int nvmlDeviceGetPowerUsage(device d, u32 *mw) { ASK(d); *mw = 312500; return d->index ? 3 : 0; }
int nvmlDeviceGetEnforcedPowerLimit(device d, u32 *mw) { ASK(d); *mw = 700000; return 0; }

struct process { u32 pid; u64 bytes; u32 gi, ci; };

static int list(device d, u32 *n, struct process *out, const struct process *in, u32 have) {
    ASK(d);
    if (*n < have) { *n = have; return 7; }
    *n = have;
    memcpy(out, in, have * sizeof *in);
    return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(device d, u32 *n, struct process *out) {
    static const struct process in[] = {{11, 500, -1, -1}, {12, -1, -1, -1}};
    return list(d, n, out, in, d->index ? 0 : 2);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(device d, u32 *n, struct process *out) {
    static const struct process in[] = {{11, 500, -1, -1}, {13, 70, -1, -1}};
    return list(d, n, out, in, d->index ? 0 : 2);
}
int nvmlDeviceGetMPSComputeRunningProcesses_v3(device d, u32 *n, struct process *out) {
    static const struct process in[] = {{12, 40, -1, -1}};
    if (d->index) return 3;
    return list(d, n, out, in, 1);
}
struct busy { u32 pid; u64 stamp; u32 sm, mem, enc, dec; };
int nvmlDeviceGetProcessUtilization(device d, struct busy *out, u32 *n, u64 since) {
    ASK(d);
    if (d->index) return 6;
    if (*n < 3) { *n = 3; return 7; }
    const struct busy in[] = {{11, since + 10, 40}, {11, since + 20, 60}, {0, 0, 99}};
    memcpy(out, in, sizeof in);
    *n = 3;
    return 0;
}
int nvmlGpmQueryDeviceSupport(device d, u32 *out) {
    ASK(d);
    out[1] = !d->index;
    return 0;
}
int nvmlGpmSampleAlloc(void **s) { *s = calloc(1, 8); return 0; }
int nvmlGpmSampleFree(void *s) { free(s); return 0; }
int nvmlGpmSampleGet(device d, u64 *s) { static u64 count; ASK(d); *s = ++count; return 0; }
struct metric { u32 id; int ret; double value; char *names[3]; };
int nvmlGpmMetricsGet(void *arg) {
    struct { u32 version, n; u64 *before, *after; struct metric m[]; } *get = arg;
    if (*get->after <= *get->before) return 2;
    for (u32 i = 0; i < get->n; i++) {
        get->m[i].ret = 0;
        get->m[i].value = get->m[i].id == 2 ? 41.5 : 12.25;
    }
    return 0;
}
