"""Regenerates the PTX of the tests; run it here. Needs cuda-bindings, NVRTC and numba-cuda, but no GPU."""
import sys, math
from cuda.bindings import nvrtc
def nv(name, src, arch="compute_89", opts=()):
    err, prog = nvrtc.nvrtcCreateProgram(src.encode(), name.encode()+b".cu", 0, [], [])
    o=[f"--gpu-architecture={arch}".encode(), *[x.encode() for x in opts]]
    err,=nvrtc.nvrtcCompileProgram(prog,len(o),o)
    if err: 
        _,n=nvrtc.nvrtcGetProgramLogSize(prog); b=b" "*n; nvrtc.nvrtcGetProgramLog(prog,b); print(b.decode()); sys.exit(1)
    _,n=nvrtc.nvrtcGetPTXSize(prog); b=b" "*n; nvrtc.nvrtcGetPTX(prog,b)
    open(f"nvrtc_{name}.ptx","w").write(b.decode().rstrip("\0 "))
nv("elementwise", r'''
extern "C" __global__ void saxpy(float a,const float*x,float*y,int n){int i=blockIdx.x*blockDim.x+threadIdx.x; if(i<n) y[i]=a*x[i]+y[i];}
extern "C" __global__ void vadd(const double*a,const double*b,double*c,unsigned long long n){for(unsigned long long i=blockIdx.x*(unsigned long long)blockDim.x+threadIdx.x;i<n;i+=(unsigned long long)gridDim.x*blockDim.x)c[i]=a[i]+b[i];}
extern "C" __global__ void loop_sum(const int*in,long long*out,int n){int t=blockIdx.x*blockDim.x+threadIdx.x; long long s=0; for(int k=0;k<=t%n;k++) s+=in[k]*(k&1?1:-1); out[t]=s;}
extern "C" __global__ void mandel(int*out,int w,int h,int iters){int x=blockIdx.x*blockDim.x+threadIdx.x,y=blockIdx.y*blockDim.y+threadIdx.y; if(x>=w||y>=h)return; float cr=-2.f+3.f*x/w,ci=-1.5f+3.f*y/h,zr=0,zi=0;int k=0;while(k<iters&&zr*zr+zi*zi<4.f){float t=zr*zr-zi*zi+cr;zi=2.f*zr*zi+ci;zr=t;k++;}out[y*w+x]=k;}
extern "C" __global__ void hash(const unsigned*in,unsigned*out,int n){int i=blockIdx.x*blockDim.x+threadIdx.x;if(i>=n)return;unsigned h=in[i];h^=h>>16;h*=0x85ebca6bu;h^=h>>13;h*=0xc2b2ae35u;h^=h>>16;h=(h<<7)|(h>>25);out[i]=h+__popc(h)+__clz(h)+__brev(h)+__umulhi(h,0x9e3779b9u)+h%7u+(int)h/13;}
extern "C" __global__ void poly(const double*x,double*y,int n){int i=blockIdx.x*blockDim.x+threadIdx.x;if(i>=n)return;double v=x[i];y[i]=((1.5*v-2.25)*v+0.125)*v+sqrt(v*v+1.0)/(v*v+3.0);}
''', opts=("--fmad=true",))
nv("features", r'''
__constant__ float table[4]={1.0f,2.5f,-3.0f,0.25f};
__device__ int counter=7;
__device__ const char* __noinline__ nop(const char*p){return p;}
struct Pair{float a;int b;double c;};
__device__ __noinline__ long long fib(int n){return n<2?n:fib(n-1)+fib(n-2);}
__device__ __noinline__ Pair mk(float a,int b){Pair p;p.a=a*2;p.b=b+counter;p.c=a+(double)b;return p;}
extern "C" __global__ void calls(long long*out,int n){int i=threadIdx.x+blockIdx.x*blockDim.x;if(i<n)out[i]=fib(i%11);}
extern "C" __global__ void structs(Pair*out,Pair in,int n){int i=threadIdx.x+blockIdx.x*blockDim.x;if(i<n){Pair p=mk(in.a+i,in.b-i);p.c+=in.c;out[i]=p;}}
extern "C" __global__ void localarr(const int*in,int*out,int n){int i=threadIdx.x+blockIdx.x*blockDim.x;if(i>=n)return;int a[16];for(int k=0;k<16;k++)a[k]=in[(i+k)%n];for(int k=1;k<16;k++){int v=a[k],j=k-1;while(j>=0&&a[j]>v){a[j+1]=a[j];j--;}a[j+1]=v;}out[i]=a[in[i]&15];}
extern "C" __global__ void sw(const int*in,int*out,int n){int i=threadIdx.x+blockIdx.x*blockDim.x;if(i>=n)return;int v=in[i],r;switch(v&15){case 0:r=v*3;break;case 1:r=v^0x55;break;case 2:r=v-9;break;case 3:r=~v;break;case 4:r=v<<3;break;case 5:r=v/7;break;case 6:r=v%11;break;case 7:r=v*v;break;case 8:r=-v;break;case 9:r=v+counter;break;default:r=1;}out[i]=r;}
extern "C" __global__ void consts(const float*in,float*out,int n){int i=threadIdx.x+blockIdx.x*blockDim.x;if(i<n)out[i]=in[i]*table[i&3];}
extern "C" __global__ void vec(const float4*in,float4*out,int n){int i=threadIdx.x+blockIdx.x*blockDim.x;if(i<n){float4 v=in[i];out[i]=make_float4(v.w,v.z,v.y+v.x,v.x*2.f);}}
extern "C" __global__ void bytes(const unsigned char*in,signed char*out,short*s,int n){int i=threadIdx.x+blockIdx.x*blockDim.x;if(i<n){out[i]=(signed char)(in[i]+100);s[i]=(short)(in[i]*300);}}
extern "C" __global__ void conv(const double*in,float*f,int*a,unsigned*b,long long*c,int n){int i=threadIdx.x+blockIdx.x*blockDim.x;if(i<n){double d=in[i];f[i]=(float)d;a[i]=(int)d;b[i]=(unsigned)(float)d;c[i]=__double2ll_rn(d);}}
extern "C" __global__ void atom(int*sum,unsigned long long*mx,float*fs,int n){int i=threadIdx.x+blockIdx.x*blockDim.x;if(i<n){atomicAdd(sum,i);atomicMax(mx,(unsigned long long)i*3);atomicAdd(fs,1.0f);atomicCAS(&sum[1],0,5);}}
extern "C" __global__ void math(const float*in,float*out,int n){int i=threadIdx.x+blockIdx.x*blockDim.x;if(i<n){float x=in[i];out[4*i]=sinf(x);out[4*i+1]=expf(x);out[4*i+2]=logf(fabsf(x)+1.f);out[4*i+3]=powf(fabsf(x),1.7f)+tanhf(x)+1.f/x+rsqrtf(fabsf(x));}}
extern "C" __global__ void mathd(const double*in,double*out,int n){int i=threadIdx.x+blockIdx.x*blockDim.x;if(i<n){double x=in[i];out[4*i]=sin(x);out[4*i+1]=exp(x);out[4*i+2]=log(fabs(x)+1.);out[4*i+3]=pow(fabs(x),1.7)+tanh(x)+1./x;}}
extern "C" __global__ void spin(volatile int*flag){while(*flag==0){}}
extern "C" __global__ void barrier(int*out){__shared__ int s[64];s[threadIdx.x]=threadIdx.x;__syncthreads();out[threadIdx.x]=s[63-threadIdx.x];}
''')
nv("reduce", r'''
extern "C" __global__ void reduce(const float*in,float*out,int n){extern __shared__ float s[];int t=threadIdx.x;float v=0;for(int i=blockIdx.x*blockDim.x+t;i<n;i+=gridDim.x*blockDim.x)v+=in[i];s[t]=v;__syncthreads();for(int k=blockDim.x/2;k>0;k>>=1){if(t<k)s[t]+=s[t+k];__syncthreads();}if(t==0)atomicAdd(out,s[0]);}
extern "C" __global__ void warp_sum(const int*in,int*out){int v=in[threadIdx.x];for(int o=16;o;o>>=1)v+=__shfl_down_sync(~0u,v,o);unsigned b=__ballot_sync(~0u,in[threadIdx.x]>3);if(threadIdx.x%32==0)atomicAdd(out,v+__popc(b)+__any_sync(1u,v>2)+__all_sync(1u,v>2));}
''')
from numba import cuda
import numba as nb
def numba_ptx(name, f, sig, **kw):
    ptx,_=cuda.compile_ptx(f, sig, cc=(8,9), **kw)
    open(f"numba_{name}.ptx","w").write(ptx)
f4=nb.float32[::1]; f8=nb.float64[::1]; i4=nb.int32[::1]; u4=nb.uint32[::1]; i8=nb.int64[::1]
def saxpy(a,x,y):
    i=cuda.grid(1)
    if i<x.size: y[i]=a*x[i]+y[i]
numba_ptx("saxpy",saxpy,nb.void(nb.float32,f4,f4))
def vadd(a,b,c):
    for i in range(cuda.grid(1),a.size,cuda.gridsize(1)): c[i]=a[i]+b[i]
numba_ptx("vadd",vadd,nb.void(f8,f8,f8))
def mandel(out,iters):
    x,y=cuda.grid(2)
    h,w=out.shape
    if x<w and y<h:
        c=complex(-2.0+3.0*x/w,-1.5+3.0*y/h); z=0j; k=0
        while k<iters and z.real*z.real+z.imag*z.imag<4.0:
            z=z*z+c; k+=1
        out[y,x]=k
numba_ptx("mandel",mandel,nb.void(nb.int32[:,::1],nb.int32))
def loopsum(inp,out):
    t=cuda.grid(1)
    if t<out.size:
        s=0
        for k in range(t+1): s+=inp[k%inp.size]*(1 if k&1 else -1)
        out[t]=s
numba_ptx("loopsum",loopsum,nb.void(i4,i8))
def poly(x,y):
    i=cuda.grid(1)
    if i<x.size:
        v=x[i]
        y[i]=((1.5*v-2.25)*v+0.125)*v+math.sqrt(v*v+1.0)/(v*v+3.0)
numba_ptx("poly",poly,nb.void(f8,f8))
def mathf(x,y):
    i=cuda.grid(1)
    if i<x.size: y[i]=math.sin(x[i])*math.exp(x[i])+math.log(abs(x[i])+1)+x[i]**2.5
numba_ptx("math",mathf,nb.void(f8,f8))
numba_ptx("vadd_debug",vadd,nb.void(f8,f8,f8),debug=True,opt=False)
