/* Prints the answers of the CUDA runtime, which finds the driver by itself. */
#include <stdio.h>

int cudaDriverGetVersion(int *);
int cudaRuntimeGetVersion(int *);
int cudaGetDeviceCount(int *);
int cudaMalloc(void **, unsigned long);
int cudaFree(void *);
int cudaGetLastError(void);
const char *cudaGetErrorName(int);

int main(void) {
    int driver = -1, runtime = -1, devices = -1;
    void *memory = 0;
    int a = cudaDriverGetVersion(&driver), b = cudaRuntimeGetVersion(&runtime), c = cudaGetDeviceCount(&devices);
    int d = cudaMalloc(&memory, 1 << 20), e = cudaFree(0), f = cudaGetLastError(), g = cudaGetLastError();
    printf("runtime %d, driver %d: codes %d %d %d %d %d %d %d, %s\n", runtime, driver, a, b, c, d, e, f, g,
           cudaGetErrorName(c));
    return 0;
}
