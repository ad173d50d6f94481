/* A light GPU program and its neighbours: ordinary programs of the CUDA Driver API that know nothing of gshare.
 * `gshare bench gate` measures its light mixes with it, on the simulated driver and on a real one. It needs a C
 * compiler and, at run time, libcuda.so.1.
 *
 * It prepares, prints `ready`, waits for a line on stdin, runs steps for WARM_MS, prints `measures`, measures its steps
 * and prints one line with their times. Then it keeps running steps, so that its neighbours stay under load, until
 * stdin is closed. */
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char USAGE[] =
    "usage: light MODE ARGUMENTS...\n"
    "\n"
    "  think KERNEL_US THINK_US STEPS            launch, synchronize, think\n"
    "  decode KERNEL_US KERNELS EVERY_US STEPS   so many kernels, synchronize; one token each EVERY_US, or at once (0)\n"
    "  flood KERNEL_US STEPS                     kernels without a pause, 4 ms or two of them queued\n"
    "  copy KERNEL_US STEPS                      4 MiB to the GPU and a kernel, on two streams, without a pause\n"
    "  host KERNEL_US SLEEP_MS STEPS             20 kernels a step, while a host function holds up another stream\n"
    "  collective KERNEL_US MEET_US MEETS STEPS  on two GPUs: a kernel, then one that waits for the other GPU's, so often\n"
    "  calibrate                                 prints the rounds of the kernel in a millisecond, and ends\n"
    "\n"
    "LIGHT_ROUNDS has the rounds of a millisecond, from `calibrate`; without it kernels do nothing. The simulated\n"
    "driver would compute all rounds: without them it takes durations from its file `costs` (spin_100us 100us).\n"
    "Prints: steps, microseconds of all together, and of one: middle, 99th percentile, longest.\n";

#define DECLARE(symbol, name, arguments) static CUresult(*name) arguments;
CUDA_CALLS(DECLARE)

static void die(const char *what, long code) {
    fprintf(stderr, "light: %s: %ld\n", what, code);
    exit(1);
}

#define DO(call)                                                                                                       \
    do {                                                                                                               \
        CUresult code_ = (call);                                                                                       \
        if (code_ != CUDA_SUCCESS)                                                                                     \
            die(#call, code_);                                                                                         \
    } while (0)

static void load(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (!driver) {
        fprintf(stderr, "light: %s\n", dlerror());
        exit(1);
    }
#define FIND(symbol, name, arguments)                                                                                  \
    *(void **)&name = dlsym(driver, #symbol);                                                                          \
    if (!name)                                                                                                         \
        die("libcuda.so.1 lacks " #symbol, 0);
    CUDA_CALLS(FIND)
}

static unsigned long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void sleep_until(unsigned long long ns) {
    struct timespec t = {.tv_sec = ns / 1000000000ull, .tv_nsec = ns % 1000000000ull};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {
    }
}

/* A GPU that the program uses. */
struct gpu {
    CUcontext context;
    CUfunction kernel, meet;
    CUstream stream, other;
    unsigned blocks;
};

static struct gpu gpus[2];
static unsigned long long per_ms;
/* Number of kernels that have reached a meeting of two GPUs, in host memory that both can access. */
static unsigned *met;

/* PTX with a kernel that mixes numbers for `us`, and one that first waits until `met` is at least `want`. Both store
 * their result if it is 0, which it never is, so that no compiler removes the loop. */
static void ptx(char *text, size_t size, unsigned long long us, unsigned long long meet_us) {
    const char *work = "";
    char loop[1024], meet[1024];
    const char *round = ".reg .pred %%p<4>;\n.reg .b64 %%d<8>;\n.reg .b32 %%r<4>;\n%s"
                        "mov.u32 %%r1, %%tid.x;\nadd.u32 %%r1, %%r1, 1;\ncvt.u64.u32 %%d1, %%r1;\n"
                        "mov.u64 %%d2, %llu;\n"
                        "LOOP:\n"
                        "shl.b64 %%d3, %%d1, 13;\nxor.b64 %%d1, %%d1, %%d3;\n"
                        "shr.u64 %%d3, %%d1, 7;\nxor.b64 %%d1, %%d1, %%d3;\n"
                        "shl.b64 %%d3, %%d1, 17;\nxor.b64 %%d1, %%d1, %%d3;\n"
                        "sub.u64 %%d2, %%d2, 1;\nsetp.ne.u64 %%p1, %%d2, 0;\n@%%p1 bra LOOP;\n"
                        "setp.eq.u64 %%p2, %%d1, 0;\nmov.u64 %%d4, 0;\n@%%p2 st.global.u64 [%%d4], %%d1;\n";
    const char *wait = "ld.param.u64 %d5, [at];\nld.param.u32 %r2, [want];\n"
                       "mov.u32 %r1, %ctaid.x;\nsetp.ne.u32 %p3, %r1, 0;\n@%p3 bra LATER;\n"
                       "red.global.sys.add.u32 [%d5], 1;\n"
                       "LATER:\nld.volatile.global.u32 %r3, [%d5];\nsetp.lt.u32 %p3, %r3, %r2;\n@%p3 bra LATER;\n";
    loop[0] = meet[0] = 0;
    if (per_ms) {
        snprintf(loop, sizeof loop, round, work, per_ms * us / 1000 + 1);
        snprintf(meet, sizeof meet, round, wait, per_ms * meet_us / 1000 + 1);
    }
    snprintf(text, size,
             ".version 7.0\n.target sm_60\n.address_size 64\n"
             ".visible .entry spin_%lluus()\n{\n%sret;\n}\n"
             ".visible .entry meet_%lluus(.param .u64 at, .param .u32 want)\n{\n%sret;\n}\n",
             us, loop, meet_us, meet);
}

static void prepare(int count, unsigned long long us, unsigned long long meet_us) {
    char text[4096], name[64];
    ptx(text, sizeof text, us, meet_us);
    DO(cuInit(0));
    for (int i = 0; i < count; i++) {
        struct gpu *g = &gpus[i];
        CUdevice device;
        CUmodule module;
        int sms;
        DO(cuDeviceGet(&device, i));
        DO(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
        /* If the kernel does nothing, one block takes as long as a full wave. */
        g->blocks = per_ms ? sms : 1;
        DO(cuDevicePrimaryCtxSetFlags(device, CU_CTX_SCHED_BLOCKING_SYNC));
        DO(cuDevicePrimaryCtxRetain(&g->context, device));
        DO(cuCtxSetCurrent(g->context));
        DO(cuModuleLoadData(&module, text));
        snprintf(name, sizeof name, "spin_%lluus", us);
        DO(cuModuleGetFunction(&g->kernel, module, name));
        snprintf(name, sizeof name, "meet_%lluus", meet_us);
        DO(cuModuleGetFunction(&g->meet, module, name));
        DO(cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING));
        DO(cuStreamCreate(&g->other, CU_STREAM_NON_BLOCKING));
    }
    DO(cuCtxSetCurrent(gpus[0].context));
}

static void launch(struct gpu *g, CUstream stream) {
    DO(cuLaunchKernel(g->kernel, g->blocks, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
}

static void think(unsigned long long us) {
    if (us)
        sleep_until(now_ns() + us * 1000);
}

/* One step of each mode; `at` is its number. */
static unsigned long long arg[4];

static void step_think(unsigned long long at) {
    (void)at;
    launch(&gpus[0], gpus[0].stream);
    DO(cuStreamSynchronize(gpus[0].stream));
}

static void after_think(unsigned long long began) {
    (void)began;
    think(arg[1]);
}

static void step_decode(unsigned long long at) {
    (void)at;
    for (unsigned long long i = 0; i < arg[1]; i++)
        launch(&gpus[0], gpus[0].stream);
    DO(cuStreamSynchronize(gpus[0].stream));
}

static void after_decode(unsigned long long began) {
    if (arg[2])
        sleep_until(began + arg[2] * 1000);
}

/* An event follows each batch; a step waits for the batch before the last. */
static CUevent batches[2];
static CUdeviceptr buffers[2];
static void *pinned;
enum { COPY = 4 << 20 };

static void step_flood(unsigned long long at) {
    unsigned long long batch = arg[0] < 2000 ? 2000 / arg[0] : 1;
    if (batch > 24)
        batch = 24;
    if (at >= 2)
        DO(cuEventSynchronize(batches[at % 2]));
    for (unsigned long long i = 0; i < batch; i++)
        launch(&gpus[0], gpus[0].stream);
    DO(cuEventRecord(batches[at % 2], gpus[0].stream));
}

static void step_copy(unsigned long long at) {
    CUstream lane = at % 2 ? gpus[0].other : gpus[0].stream;
    if (at >= 2)
        DO(cuEventSynchronize(batches[at % 2]));
    DO(cuMemcpyHtoDAsync(buffers[at % 2], pinned, COPY, lane));
    launch(&gpus[0], lane);
    DO(cuEventRecord(batches[at % 2], lane));
}

/* Whether a host function sleeps on the other stream; if none does, the next step starts one. */
static volatile int asleep;

static void sleeper(void *data) {
    (void)data;
    sleep_until(now_ns() + arg[1] * 1000000);
    asleep = 0;
}

static void step_host(unsigned long long at) {
    (void)at;
    if (arg[1] && !asleep) {
        asleep = 1;
        launch(&gpus[0], gpus[0].other);
        DO(cuLaunchHostFunc(gpus[0].other, sleeper, NULL));
        launch(&gpus[0], gpus[0].other);
    }
    for (int i = 0; i < 20; i++)
        launch(&gpus[0], gpus[0].stream);
    DO(cuStreamSynchronize(gpus[0].stream));
}

static unsigned meetings;

static void step_collective(unsigned long long at) {
    (void)at;
    for (unsigned long long i = 0; i < arg[2]; i++) {
        meetings += 2;
        for (int g = 0; g < 2; g++) {
            void *parameters[] = {&met, &meetings};
            DO(cuCtxSetCurrent(gpus[g].context));
            launch(&gpus[g], gpus[g].stream);
            DO(cuLaunchKernel(gpus[g].meet, 1, 1, 1, 1, 1, 1, 0, gpus[g].stream, parameters, NULL));
        }
    }
    for (int g = 0; g < 2; g++) {
        DO(cuCtxSetCurrent(gpus[g].context));
        DO(cuStreamSynchronize(gpus[g].stream));
    }
}

static void calibrate(void) {
    for (per_ms = 1000000;; per_ms *= 4) {
        prepare(1, 1000, 1);
        unsigned long long least = ~0ull;
        for (int i = 0; i < 5; i++) {
            unsigned long long began = now_ns();
            launch(&gpus[0], gpus[0].stream);
            DO(cuStreamSynchronize(gpus[0].stream));
            if (now_ns() - began < least)
                least = now_ns() - began;
        }
        /* Long enough that the launch itself hardly counts. */
        if (least > 20000000 || per_ms >> 40) {
            printf("%llu\n", per_ms * 1000000 / least);
            return;
        }
    }
}

static int compare(const void *a, const void *b) {
    unsigned long long x = *(const unsigned long long *)a, y = *(const unsigned long long *)b;
    return (x > y) - (x < y);
}

/* Warm-up before measuring: gshare may need 200 ms to learn what programs need. */
enum { WARM_MS = 500 };

static const struct mode {
    const char *name;
    /* Number of arguments; the last is the number of steps. */
    int arguments, gpus;
    void (*step)(unsigned long long at);
    void (*after)(unsigned long long began);
} MODES[] = {
    {"think", 3, 1, step_think, after_think}, {"decode", 4, 1, step_decode, after_decode},
    {"flood", 2, 1, step_flood, NULL},        {"copy", 2, 1, step_copy, NULL},
    {"host", 3, 1, step_host, NULL},          {"collective", 4, 2, step_collective, NULL},
};

int main(int count, char **words) {
    const struct mode *mode = NULL;
    const char *rounds = getenv("LIGHT_ROUNDS");
    per_ms = rounds ? strtoull(rounds, NULL, 10) : 0;
    if (count == 2 && !strcmp(words[1], "calibrate")) {
        load();
        calibrate();
        return 0;
    }
    for (size_t i = 0; count > 1 && i < sizeof MODES / sizeof *MODES; i++)
        if (!strcmp(words[1], MODES[i].name) && count == MODES[i].arguments + 2)
            mode = &MODES[i];
    if (!mode) {
        fputs(USAGE, stderr);
        return 2;
    }
    for (int i = 0; i < mode->arguments; i++)
        arg[i] = strtoull(words[i + 2], NULL, 10);
    unsigned long long steps = arg[mode->arguments - 1];
    unsigned long long *took = calloc(steps + 1, sizeof *took);
    if (!took || arg[0] == 0)
        die("KERNEL_US or STEPS is no good", 0);

    load();
    prepare(mode->gpus, arg[0], mode->step == step_collective ? arg[1] : 1);
    for (int i = 0; i < 2; i++)
        DO(cuEventCreate(&batches[i], CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
    if (mode->step == step_copy) {
        DO(cuMemHostAlloc(&pinned, COPY, 0));
        for (int i = 0; i < 2; i++)
            DO(cuMemAlloc(&buffers[i], COPY));
    }
    if (mode->step == step_collective) {
        DO(cuMemHostAlloc((void **)&met, sizeof *met, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
        *met = 0;
    }
    unsigned long long at = 0;
    for (; at < 5; at++)
        mode->step(at);
    puts("ready");
    fflush(stdout);
    char line[16];
    if (!fgets(line, sizeof line, stdin))
        return 0;

    struct pollfd closed = {.fd = 0, .events = POLLIN};
    unsigned long long began = now_ns(), done = 0, looked = began;
    int measures = 0;
    for (;; at++) {
        unsigned long long from = now_ns();
        mode->step(at);
        unsigned long long to = now_ns();
        if (mode->after)
            mode->after(from);
        if (!measures) {
            if (to - began > WARM_MS * 1000000ull) {
                measures = 1;
                puts("measures");
                fflush(stdout);
                began = now_ns();
            }
        } else if (done < steps) {
            took[done++] = to - from;
            if (done == steps) {
                unsigned long long all = now_ns() - began;
                qsort(took, steps, sizeof *took, compare);
                printf("%llu %.1f %.1f %.1f %.1f\n", steps, all / 1e3, took[steps / 2] / 1e3,
                       took[(steps - 1) * 99 / 100] / 1e3, took[steps - 1] / 1e3);
                fflush(stdout);
            }
        }
        /* Only every 5 ms, since a look at stdin costs the program a system call. */
        if (to - looked > 5000000) {
            looked = to;
            if (poll(&closed, 1, 0) > 0)
                break;
        }
    }
    return 0;
}
