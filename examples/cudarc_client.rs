//! cudarc as people use it: data to the GPU and back, a kernel, and memory until there is no more.
//!
//! Prints one fact a line; after `ready` it takes a step for each line that it reads. It knows nothing of
//! gshare.
#![allow(
    unsafe_code,
    reason = "cudarc's launch, and memory that is not cleared"
)]

use std::io::{BufRead, Write};
use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaFunction, CudaStream, DriverError, LaunchConfig, PushKernelArg,
};
use cudarc::nvrtc::Ptx;

/// Bytes that each step takes.
const STEP: usize = (256 << 20) + 1;

const PTX: &str = ".version 8.0
.target sm_80
.address_size 64
.visible .entry axpy(.param .u64 y, .param .u64 x, .param .f32 a, .param .u32 n)
{
.reg .pred %p<2>;
.reg .f32 %f<4>;
.reg .b32 %r<6>;
.reg .b64 %rd<6>;
ld.param.u64 %rd1, [y];
ld.param.u64 %rd2, [x];
ld.param.f32 %f1, [a];
ld.param.u32 %r1, [n];
mov.u32 %r2, %ctaid.x;
mov.u32 %r3, %ntid.x;
mov.u32 %r4, %tid.x;
mad.lo.s32 %r5, %r2, %r3, %r4;
setp.ge.u32 %p1, %r5, %r1;
@%p1 bra DONE;
mul.wide.u32 %rd3, %r5, 4;
add.s64 %rd4, %rd2, %rd3;
add.s64 %rd5, %rd1, %rd3;
ld.global.f32 %f2, [%rd4];
ld.global.f32 %f3, [%rd5];
fma.rn.f32 %f3, %f1, %f2, %f3;
st.global.f32 [%rd5], %f3;
DONE:
ret;
}
";

fn word(right: bool) -> &'static str {
    if right { "exact" } else { "wrong" }
}

fn axpy(stream: &Arc<CudaStream>, kernel: &CudaFunction) -> Result<bool, DriverError> {
    let x: Vec<f32> = (0..5000u16).map(f32::from).collect();
    let on_gpu = stream.clone_htod(&x)?;
    let mut y = stream.clone_htod(&vec![1.0f32; x.len()])?;
    let (a, n) = (0.5f32, 5000u32);
    let mut launch = stream.launch_builder(kernel);
    launch.arg(&mut y).arg(&on_gpu).arg(&a).arg(&n);
    // SAFETY: the arguments are those of the kernel, which stays within `n` elements.
    unsafe { launch.launch(LaunchConfig::for_num_elems(n)) }?;
    let found = stream.clone_dtoh(&y)?;
    Ok(found.iter().zip(&x).all(|(y, x)| *y == 0.5 * x + 1.0))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut out = std::io::stdout();
    let context = CudaContext::new(0)?;
    writeln!(out, "devices {}", CudaContext::device_count()?)?;
    writeln!(out, "name {}", context.name()?)?;
    writeln!(out, "total {}", context.mem_get_info()?.1)?;
    let stream = context.default_stream();
    let data: Vec<u8> = (0..1u32 << 20).map(|i| (i * 7 + i / 256) as u8).collect();
    let back = stream.clone_dtoh(&stream.clone_htod(&data)?)?;
    writeln!(out, "copy {}", word(back == data))?;
    let module = context.load_module(Ptx::from_src(PTX))?;
    let kernel = module.load_function("axpy")?;
    writeln!(out, "kernel {}", word(axpy(&stream, &kernel)?))?;
    stream.synchronize()?;
    writeln!(out, "ready")?;
    let mut held = Vec::new();
    let mut lines = std::io::stdin().lock().lines();
    while lines.next().transpose()?.is_some() {
        // SAFETY: nothing reads what is not written: the buffer is only held.
        match unsafe { stream.alloc::<u8>(STEP) } {
            Ok(buffer) => held.push(buffer),
            Err(error) => {
                writeln!(out, "refused {error:?}")?;
                lines.next().transpose()?;
                break;
            }
        }
        writeln!(out, "held {}", held.len())?;
    }
    held.pop();
    writeln!(out, "after {}", word(axpy(&stream, &kernel)?))?;
    Ok(())
}
