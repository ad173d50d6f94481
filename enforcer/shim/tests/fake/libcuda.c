/* A minimal driver for the proxy's tests, with the habits of the real driver that matter to the proxy. Memory is only
 * addresses. The memory in use on each of its two GPUs, and the peak, are in a file that all processes share
 * (FAKE_BOARD), updated at every step. */
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define MIB (1ull << 20)
#define BLOCK (2 * MIB)
#define TOTAL (64ull << 30)
#define OVERHEAD (100 * MIB)
#define CHUNK (32 * MIB)

typedef int R;
typedef void *H;
enum { OK = 0, INVALID = 1, OOM = 2, UNINIT = 3, BADCTX = 201, BADHANDLE = 400, MISSING = 500 };

struct board { uint64_t used[2], peak[2]; };
struct alloc { uint64_t at, bytes, charged; int gpu, kind, pool; H ctx; };
enum { PLAIN = 1, SMALL, POOLED, PHYS };
struct pool { int alive, gpu; uint64_t reserved, used, freed; };
struct ctx { int alive, gpu, primary; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct board *board;
static struct alloc allocs[1 << 16];
static int alloc_count;
static struct pool pools[16];
static struct ctx contexts[16];
static int retained[2], calls;
static uint64_t next_at = 0x700000000000ull;
static uint64_t small_at[2], small_left[2];
static __thread struct ctx *current;
static int ready;

API uint64_t fake_own_calls(void) { return calls; }

static int take(int gpu, uint64_t bytes) {
  uint64_t now = __atomic_add_fetch(&board->used[gpu], bytes, __ATOMIC_SEQ_CST);
  if (now > TOTAL) {
    __atomic_sub_fetch(&board->used[gpu], bytes, __ATOMIC_SEQ_CST);
    return 0;
  }
  uint64_t peak = __atomic_load_n(&board->peak[gpu], __ATOMIC_SEQ_CST);
  while (now > peak && !__atomic_compare_exchange_n(&board->peak[gpu], &peak, now, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
  return 1;
}
static void give(int gpu, uint64_t bytes) { __atomic_sub_fetch(&board->used[gpu], bytes, __ATOMIC_SEQ_CST); }
static uint64_t up(uint64_t bytes) { return (bytes + BLOCK - 1) / BLOCK * BLOCK; }
static uint64_t address(uint64_t bytes) { uint64_t at = next_at; next_at += up(bytes); return at; }

static struct alloc *add(uint64_t at, uint64_t bytes, uint64_t charged, int gpu, int kind) {
  struct alloc *a = NULL;
  for (int i = 0; i < alloc_count && !a; i++) if (!allocs[i].kind) a = &allocs[i];
  if (!a) a = &allocs[alloc_count++];
  *a = (struct alloc){at, bytes, charged, gpu, kind, 0, current};
  return a;
}
static struct alloc *find(uint64_t at) {
  for (int i = 0; i < alloc_count; i++) if (allocs[i].kind && allocs[i].kind != PHYS && allocs[i].at == at) return &allocs[i];
  return NULL;
}
/* A block of small allocations is returned with its last allocation. */
static void drop(struct alloc *a) {
  int kind = a->kind;
  a->kind = 0;
  if (kind == SMALL) {
    for (int i = 0; i < alloc_count; i++)
      if (allocs[i].kind == SMALL && allocs[i].at / BLOCK == a->at / BLOCK) return;
    if (small_at[a->gpu] / BLOCK == a->at / BLOCK) small_left[a->gpu] = 0;
    give(a->gpu, BLOCK);
  } else if (kind == POOLED) {
    pools[a->pool].freed += a->charged;
  } else {
    give(a->gpu, a->charged);
  }
}

API R cuInit(unsigned flags) {
  if (flags) return INVALID;
  pthread_mutex_lock(&lock);
  if (!board) {
    int fd = open(getenv("FAKE_BOARD"), O_RDWR);
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    for (int i = 0; i < 2; i++) pools[i] = (struct pool){1, i, 0, 0, 0};
  }
  ready = 1;
  pthread_mutex_unlock(&lock);
  return OK;
}
API R cuDriverGetVersion(int *v) { *v = 13000; return OK; }
API R cuDeviceGetCount(int *n) { if (!ready) return UNINIT; *n = 2; return OK; }
API R cuDeviceGet(int *d, int i) { if (i < 0 || i > 1) return 101; *d = i; return OK; }
API R cuDeviceGetUuid_v2(char *uuid, int d) {
  /* FAKE_REVERSED reverses the order of the GPUs, as CUDA_VISIBLE_DEVICES can. */
  memset(uuid, getenv("FAKE_REVERSED") ? 0x12 - d : 0x11 + d, 16);
  return OK;
}
static int gpu_of(int d) { return getenv("FAKE_REVERSED") ? 1 - d : d; }
API R cuDeviceTotalMem_v2(size_t *b, int d) { if (!b) return INVALID; (void)d; *b = TOTAL; return OK; }
API R cuMemGetInfo_v2(size_t *f, size_t *t) {
  if (!f || !t) return INVALID;
  if (!current) return BADCTX;
  *t = TOTAL; *f = TOTAL - board->used[current->gpu];
  return OK;
}

static R context(H *out, int gpu, int primary) {
  if (!out) return INVALID;
  for (int i = 0; i < 16; i++) if (!contexts[i].alive) {
    if (!take(gpu, OVERHEAD)) return OOM;
    contexts[i] = (struct ctx){1, gpu, primary};
    *out = &contexts[i];
    return OK;
  }
  return OOM;
}
static void end(struct ctx *c) {
  for (int i = 0; i < alloc_count; i++)
    if (allocs[i].kind && allocs[i].ctx == c && (allocs[i].kind == PLAIN || allocs[i].kind == SMALL)) drop(&allocs[i]);
  c->alive = 0;
  if (current == c) current = NULL;
  give(c->gpu, OVERHEAD);
}
static struct ctx *primary(int gpu) {
  for (int i = 0; i < 16; i++) if (contexts[i].alive && contexts[i].primary && contexts[i].gpu == gpu) return &contexts[i];
  return NULL;
}
API R cuDevicePrimaryCtxRetain(H *out, int d) {
  if (!ready) return UNINIT;
  if (d < 0 || d > 1) return 101;
  pthread_mutex_lock(&lock);
  int gpu = gpu_of(d);
  struct ctx *c = primary(gpu);
  R r = OK;
  if (!out) r = INVALID; else if (c) *out = c; else r = context(out, gpu, 1);
  if (r == OK) retained[gpu]++;
  pthread_mutex_unlock(&lock);
  return r;
}
API R cuDevicePrimaryCtxRelease_v2(int d) {
  int gpu = gpu_of(d);
  if (!retained[gpu]) return BADCTX;
  pthread_mutex_lock(&lock);
  if (!--retained[gpu] && primary(gpu)) end(primary(gpu));
  pthread_mutex_unlock(&lock);
  return OK;
}
API R cuDevicePrimaryCtxReset_v2(int d) {
  pthread_mutex_lock(&lock);
  if (primary(gpu_of(d))) end(primary(gpu_of(d)));
  pthread_mutex_unlock(&lock);
  return OK;
}
API R cuDevicePrimaryCtxGetState(int d, unsigned *f, int *a) { *f = 0; *a = primary(gpu_of(d)) != NULL; return OK; }
API R cuCtxCreate_v2(H *out, unsigned f, int d) {
  (void)f;
  if (!ready) return UNINIT;
  if (d < 0 || d > 1) return 101;
  pthread_mutex_lock(&lock);
  R r = context(out, gpu_of(d), 0);
  if (r == OK) current = *out;
  pthread_mutex_unlock(&lock);
  return r;
}
API R cuCtxCreate_v4(H *out, void *p, unsigned f, int d) { (void)p; return cuCtxCreate_v2(out, f, d); }
API R cuCtxDestroy_v2(H c) { if (!c) return INVALID; pthread_mutex_lock(&lock); end(c); pthread_mutex_unlock(&lock); return OK; }
API R cuCtxSetCurrent(H c) { current = c; return OK; }
API R cuCtxGetCurrent(H *c) { *c = current; return OK; }
API R cuCtxGetDevice(int *d) { if (!current) return BADCTX; *d = gpu_of(current->gpu); return OK; }

static R plain(uint64_t *p, uint64_t bytes) {
  if (!p || !bytes) return INVALID;
  if (!current) return BADCTX;
  pthread_mutex_lock(&lock);
  int gpu = current->gpu;
  R r = OOM;
  if (bytes < MIB) {
    uint64_t units = (bytes + 511) / 512 * 512;
    if (small_left[gpu] >= units || take(gpu, BLOCK)) {
      if (small_left[gpu] < units) { small_at[gpu] = address(BLOCK); small_left[gpu] = BLOCK; }
      *p = small_at[gpu] + BLOCK - small_left[gpu];
      small_left[gpu] -= units;
      add(*p, bytes, 0, gpu, SMALL);
      r = OK;
    }
  } else if (take(gpu, up(bytes))) {
    *p = address(bytes);
    add(*p, bytes, up(bytes), gpu, PLAIN);
    r = OK;
  }
  pthread_mutex_unlock(&lock);
  return r;
}
API R cuMemAlloc_v2(uint64_t *p, size_t n) { return plain(p, n); }
API R cuMemAlloc(unsigned *p, unsigned n) { uint64_t q = 0; R r = plain(&q, n); if (r == OK) *p = (unsigned)q; return r; }
API R cuMemAllocPitch_v2(uint64_t *p, size_t *pitch, size_t w, size_t h, unsigned e) {
  (void)e;
  if (!pitch) return INVALID;
  *pitch = (w + 511) / 512 * 512;
  return plain(p, *pitch * h);
}
API R cuMemAllocManaged(uint64_t *p, size_t n, unsigned f) { return f ? plain(p, n) : INVALID; }
API R cuMemFree_v2(uint64_t p) {
  if (!p) return OK;
  pthread_mutex_lock(&lock);
  struct alloc *a = find(p);
  R r = a ? OK : INVALID;
  if (a) {
    int pooled = a->kind == POOLED, pool = a->pool;
    drop(a);
    if (pooled) { /* On a synchronous free the pool returns whole chunks at once. */
      struct pool *q = &pools[pool];
      q->used -= q->freed; q->freed = 0;
      uint64_t keep = (q->used + CHUNK - 1) / CHUNK * CHUNK;
      if (keep < q->reserved) { give(q->gpu, q->reserved - keep); q->reserved = keep; }
    }
  }
  pthread_mutex_unlock(&lock);
  return r;
}

static void settle(void) { /* A synchronisation trims pools without a release threshold. */
  for (int i = 0; i < 16; i++) {
    struct pool *q = &pools[i];
    q->used -= q->freed; q->freed = 0;
    uint64_t keep = (q->used + CHUNK - 1) / CHUNK * CHUNK;
    if (keep < q->reserved) { give(q->gpu, q->reserved - keep); q->reserved = keep; }
  }
}
static R pooled(uint64_t *p, uint64_t bytes, int pool) {
  if (!p || !bytes) return INVALID;
  pthread_mutex_lock(&lock);
  struct pool *q = &pools[pool];
  uint64_t units = (bytes + 511) / 512 * 512;
  R r = OK;
  if (q->used + units > q->reserved) {
    uint64_t grow = (q->used + units - q->reserved + CHUNK - 1) / CHUNK * CHUNK;
    if (getenv("FAKE_EXACT_POOLS")) grow = up(q->used + units - q->reserved);
    if (take(q->gpu, grow)) q->reserved += grow; else r = OOM;
  }
  if (r == OK) {
    q->used += units;
    *p = address(bytes);
    add(*p, bytes, units, q->gpu, POOLED)->pool = pool;
  }
  pthread_mutex_unlock(&lock);
  return r;
}
API R cuMemAllocAsync(uint64_t *p, size_t n, H s) { (void)s; return current ? pooled(p, n, current->gpu) : BADCTX; }
API R cuMemAllocAsync_ptsz(uint64_t *p, size_t n, H s) { calls++; return cuMemAllocAsync(p, n, s); }
API R cuMemAllocFromPoolAsync(uint64_t *p, size_t n, H pool, H s) { (void)s; return pooled(p, n, (struct pool *)pool - pools); }
API R cuMemFreeAsync(uint64_t p, H s) {
  (void)s;
  pthread_mutex_lock(&lock);
  struct alloc *a = find(p);
  R r = a ? OK : INVALID;
  if (a) drop(a);
  pthread_mutex_unlock(&lock);
  return r;
}
API R cuMemFreeAsync_ptsz(uint64_t p, H s) { return cuMemFreeAsync(p, s); }
API R cuDeviceGetDefaultMemPool(H *out, int d) { *out = &pools[gpu_of(d)]; return OK; }
API R cuDeviceGetMemPool(H *out, int d) { *out = &pools[gpu_of(d)]; return OK; }
API R cuMemPoolCreate(H *out, const int *props) {
  for (int i = 2; i < 16; i++) if (!pools[i].alive) {
    pools[i] = (struct pool){1, gpu_of(props[3]), 0, 0, 0};
    *out = &pools[i];
    return OK;
  }
  return OOM;
}
API R cuMemPoolDestroy(H pool) {
  struct pool *q = pool;
  give(q->gpu, q->reserved);
  q->alive = 0; q->reserved = 0;
  return OK;
}
API R cuMemPoolTrimTo(H pool, size_t keep_min) {
  (void)keep_min;
  struct pool *q = pool;
  pthread_mutex_lock(&lock);
  uint64_t keep = (q->used + CHUNK - 1) / CHUNK * CHUNK;
  if (keep < q->reserved) { give(q->gpu, q->reserved - keep); q->reserved = keep; }
  pthread_mutex_unlock(&lock);
  return OK;
}
API R cuMemPoolGetAttribute(H pool, int attribute, void *value) {
  if (attribute != 5) return INVALID;
  if (getenv("FAKE_SLOW_POOLS")) usleep(200000);
  if ((struct pool *)pool > pools + 1 && !((struct pool *)pool)->alive) abort(); /* The real driver crashes: it dereferences the handle. */
  *(uint64_t *)value = ((struct pool *)pool)->reserved;
  return OK;
}
API R cuStreamSynchronize(H s) { (void)s; pthread_mutex_lock(&lock); settle(); pthread_mutex_unlock(&lock); return OK; }
API R cuStreamSynchronize_ptsz(H s) { return cuStreamSynchronize(s); }
API R cuCtxSynchronize(void) { return cuStreamSynchronize(NULL); }

/* Physical memory: the handle is an index, with a reference count as in the driver. */
static struct { int refs, gpu; uint64_t bytes; } phys[64];
static struct { uint64_t at, bytes; int phys; } maps[64];
static void unref(int i) { if (!--phys[i].refs) { if (phys[i].gpu >= 0) give(phys[i].gpu, phys[i].bytes); phys[i].bytes = 0; } }
API R cuMemCreate(uint64_t *h, size_t n, const int *props, unsigned long long f) {
  (void)f;
  if (!h || !props || n % BLOCK) return INVALID;
  int gpu = props[2] == 1 ? gpu_of(props[3]) : -1;
  for (int i = 1; i < 64; i++) if (!phys[i].refs) {
    if (gpu >= 0 && !take(gpu, n)) return OOM;
    phys[i].refs = 1; phys[i].gpu = gpu; phys[i].bytes = n;
    *h = i;
    return OK;
  }
  return OOM;
}
API R cuMemRelease(uint64_t h) { if (h > 63 || !phys[h].refs) return INVALID; unref(h); return OK; }
API R cuMemMap(uint64_t p, size_t n, size_t o, uint64_t h, unsigned long long f) {
  (void)o; (void)f;
  for (int i = 0; i < 64; i++) if (!maps[i].bytes) { maps[i].at = p; maps[i].bytes = n; maps[i].phys = h; phys[h].refs++; return OK; }
  return OOM;
}
API R cuMemUnmap(uint64_t p, size_t n) {
  for (int i = 0; i < 64; i++) if (maps[i].bytes && maps[i].at >= p && maps[i].at < p + n) { maps[i].bytes = 0; unref(maps[i].phys); }
  return OK;
}
API R cuMemRetainAllocationHandle(uint64_t *h, void *a) {
  for (int i = 0; i < 64; i++) if (maps[i].bytes && (uint64_t)a >= maps[i].at && (uint64_t)a < maps[i].at + maps[i].bytes) { *h = maps[i].phys; phys[*h].refs++; return OK; }
  return INVALID;
}

static uint64_t blocks;
API uint64_t fake_blocks(void) { return blocks; }
API R cuLaunchKernel(H f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s, H st, void **p, void **x) {
  blocks = (uint64_t)a * b * c; (void)d; (void)e; (void)g; (void)s; (void)st; (void)p; (void)x;
  return f ? OK : BADHANDLE;
}
API R cuLaunchKernel_ptsz(H f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s, H st, void **p, void **x) {
  calls++;
  return cuLaunchKernel(f, a, b, c, d, e, g, s, st, p, x);
}
API R cuLaunchKernelEx(const void *cfg, H f, void **p, void **x) { (void)cfg; (void)p; (void)x; return f ? OK : BADHANDLE; }
API R cuLaunchCooperativeKernel(H f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned s, H st, void **p) {
  return cuLaunchKernel(f, a, b, c, d, e, g, s, st, p, NULL);
}
/* Newer than the proxy's table. */
API R cuFromTheFuture(int x) { return x + 1; }

API R cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status);
API R cuGetProcAddress(const char *name, void **out, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, out, version, flags, NULL);
}
/* Objects of other drivers: the handle is the object's number; 0 is invalid. */
static R foreign(H *out, uint64_t of) { if (!out || !of) return INVALID; calls++; *out = (H)of; return OK; }
API R cuImportExternalMemory(H *out, const void *of) { return foreign(out, (uint64_t)of); }
API R cuImportExternalSemaphore(H *out, const void *of) { return foreign(out, (uint64_t)of); }
API R cuGraphicsGLRegisterBuffer(H *out, unsigned buffer, unsigned flags) { (void)flags; return foreign(out, buffer); }
API R cuGraphicsEGLRegisterImage(H *out, H image, unsigned flags) { (void)flags; return foreign(out, (uint64_t)image); }
API R cuGraphicsGLRegisterImage(H *out, unsigned image, unsigned target, unsigned flags) {
  (void)target, (void)flags;
  return foreign(out, image);
}
#include <stdio.h>
#define SYMBOLS(X) X(cuInit) X(cuMemAlloc_v2) X(cuMemAlloc) X(cuMemFree_v2) X(cuMemGetInfo_v2) X(cuLaunchKernel) \
  X(cuLaunchKernel_ptsz) X(cuMemAllocAsync) X(cuMemAllocAsync_ptsz) X(cuFromTheFuture) X(cuGetProcAddress) X(cuGetProcAddress_v2)
API R cuGetProcAddress_v2(const char *name, void **out, int version, uint64_t flags, int *status) {
  char full[64];
  static const struct { const char *name; void *at; } all[] = {
#define ROW(f) {#f, (void *)f},
    SYMBOLS(ROW)
  };
  if (!name || !out) return INVALID;
  *out = NULL;
  int newer = !strcmp(name, "cuGetProcAddress") ? version >= 12000 : version >= 3020;
  const char *ends[] = {flags == 2 ? "_ptsz" : newer ? "_v2" : "", newer ? "_v2" : "", ""};
  for (int e = 0; e < 3 && !*out; e++) {
    snprintf(full, sizeof full, "%s%s", name, ends[e]);
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++) if (!strcmp(all[i].name, full)) { *out = all[i].at; break; }
  }
  if (status) *status = *out ? 0 : 1;
  return *out ? OK : MISSING;
}
