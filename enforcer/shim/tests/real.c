/* Finds CUDA in one of the ways that programs use (linked, dlopen or dlsym), and prints the driver's answers. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int (*call)();
#ifdef LINKED
int cuInit(unsigned);
int cuDeviceGetCount(int *);
int cuDriverGetVersion(int *);
int cuCtxGetCurrent(void **);
int cuMemAlloc_v2(unsigned long long *, size_t);
#define FIND(name) ((call)name)
#else
#define FIND(name) ((call)dlsym(library, #name))
#endif

int main(int count, char **arguments) {
    void *library = NULL;
    if (count == 3) {
        int flags = (int)strtol(arguments[2], NULL, 0);
        library = dlopen(arguments[1], flags);
        if (!library) {
            printf("%s\n", dlerror());
            return 1;
        }
    }
    int devices = -1, version = -1;
    void *context = (void *)1;
    unsigned long long pointer = 1;
    int before = FIND(cuDeviceGetCount)(&devices);
    int start = FIND(cuInit)(0);
    int wrong = FIND(cuInit)(7);
    int counted = FIND(cuDeviceGetCount)(&devices);
    int versioned = FIND(cuDriverGetVersion)(&version);
    int current = FIND(cuCtxGetCurrent)(&context);
    int memory = FIND(cuMemAlloc_v2)(&pointer, (size_t)64);
    printf("codes %d %d %d %d %d %d %d, version %d\n", before, start, wrong, counted, versioned, current, memory,
           version);
    Dl_info info = {0};
    dladdr((void *)FIND(cuInit), &info);
    printf("from %s\n", info.dli_fname);
    return 0;
}
