/* A minimal NVML with the claim's one GPU, or with FAKE_NVML_MIG the GPU of the claim's one instance. For memory it
 * returns the code FAKE_NVML_CODE (on the GPU) and FAKE_NVML_USED bytes in use of 64 GiB. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define OWN "11111111-1111-1111-1111-111111111111"
#define PARENT "99999999-9999-9999-9999-999999999999"
#define EXPORT __attribute__((visibility("default")))

static char gpu, instance;

static int divided(void) { return getenv("FAKE_NVML_MIG") != NULL; }

static const char *name(void *device) {
    if (device == &instance) return "MIG-" OWN;
    return divided() ? "GPU-" PARENT : "GPU-" OWN;
}

EXPORT int nvmlInit_v2(void) { return 0; }
EXPORT int nvmlDeviceGetCount_v2(unsigned *count) { return *count = 1, 0; }
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return *device = &gpu, index ? 2 : 0; }

EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    if (!strcmp(uuid, name(&gpu))) return *device = &gpu, 0;
    if (divided() && !strcmp(uuid, name(&instance))) return *device = &instance, 0;
    return 6;
}

EXPORT int nvmlDeviceGetUUID(void *device, char *text, unsigned bytes) { return strncpy(text, name(device), bytes), 0; }
EXPORT int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is) { return *is = device == &instance, 0; }
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *of, void **device) { return *device = &gpu, of == &gpu; }

static int memory(void *device, uint64_t *total, uint64_t *free_, uint64_t *used) {
    const char *code = getenv("FAKE_NVML_CODE"), *bytes = getenv("FAKE_NVML_USED");
    if (device == &gpu && code) return atoi(code);
    *total = UINT64_C(64) << 30;
    *used = bytes ? strtoull(bytes, NULL, 10) : 0;
    *free_ = *total - *used;
    return 0;
}

EXPORT int nvmlDeviceGetMemoryInfo(void *device, uint64_t *info) { return memory(device, info, info + 1, info + 2); }

EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, uint64_t *info) {
    /* The version must be that of the structure. */
    if ((uint32_t)info[0] != (40 | 2u << 24)) return 25;
    info[2] = 0;
    return memory(device, info + 1, info + 3, info + 4);
}
