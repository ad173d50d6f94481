//! Queries of pointers, and hints about managed memory.

use crate::code::{INVALID_VALUE, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{In, Out, export, export_stream};
use crate::memory::{Alloc, Kind};
use crate::pool::Location;

/// Writes an attribute of a pointer. With `lenient`, an unknown pointer gives zeros.
fn attribute(t: &Tables, out: Out<u64>, attribute: u32, addr: u64, lenient: bool) -> R {
    let Some((base, a)) = t.memory.find(addr) else {
        if !lenient {
            return Err(INVALID_VALUE);
        }
        return match attribute {
            // Sizes of the values as in the call with a list.
            1 | 3 | 4 | 7 | 11 | 12 | 17..=20 => out.set(0),
            2 | 14 | 16 => out.cast::<u32>().set(0),
            9 => out.cast::<i32>().set(-2),
            6 | 8 | 10 | 13 | 15 | 21 => out.cast::<u8>().set(0),
            _ => Err(INVALID_VALUE),
        };
    };
    let Alloc { size, kind, .. } = a;
    let on_host = matches!(kind, Kind::Host(_) | Kind::Registered(_));
    match attribute {
        1 => out.set(a.context),
        2 => out.cast::<u32>().set(if on_host { 1 } else { 2 }),
        3 => out.set(addr),
        4 if on_host || kind == Kind::Managed => out.set(addr),
        4 if lenient => out.set(0),
        4 => Err(INVALID_VALUE),
        7 => out.set(a.id),
        8 => out.cast::<u8>().set(u8::from(kind == Kind::Managed)),
        9 => out.cast::<i32>().set(a.device as i32),
        10 => out.cast::<u8>().set(u8::from(kind == Kind::Device)),
        11 => out.set(base),
        12 => out.set(size),
        13 => out.cast::<u8>().set(1),
        14 => out.cast::<u32>().set(0),
        6 | 15 | 21 => out.cast::<u8>().set(0),
        16 => out.cast::<u32>().set(3),
        17 => out.set(match kind {
            Kind::Pool(pool) => pool,
            _ => 0,
        }),
        18 => out.set(size),
        19 => out.set(base),
        20 => out.set(a.id),
        _ => Err(INVALID_VALUE),
    }
}

fn managed(d: &Driver, addr: u64) -> R {
    match d.tables().memory.find(addr) {
        Some((_, a)) if matches!(a.kind, Kind::Managed) => Ok(()),
        _ => Err(INVALID_VALUE),
    }
}

export! {
    cuPointerGetAttribute(out: Out<u64>, which: u32, addr: u64) |d| {
        out.check()?;
        attribute(&d.tables(), out, which, addr, false)
    };
    cuPointerGetAttributes(count: u32, which: In<u32>, outs: In<u64>, addr: u64) |d| {
        let t = d.tables();
        for i in 0..count as usize {
            let place: Out<u64> = out_at(outs, i)?;
            attribute(&t, place, which.at(i)?, addr, true)?;
        }
        Ok(())
    };
    cuMemAdvise(addr: u64, _len: usize, advice: u32, _device: i32) |d| {
        managed(d, addr)?;
        if (1..=6).contains(&advice) { Ok(()) } else { Err(INVALID_VALUE) }
    };
    cuMemAdvise_v2(addr: u64, _len: usize, advice: u32, _location: Location) |d| {
        managed(d, addr)?;
        if (1..=6).contains(&advice) { Ok(()) } else { Err(INVALID_VALUE) }
    };
}

export_stream! {
    cuMemPrefetchAsync, cuMemPrefetchAsync_ptsz(addr: u64, _len: usize, _device: i32; stream) |d| {
        d.stream(stream)?;
        managed(d, addr)
    };
    cuMemPrefetchAsync_v2, cuMemPrefetchAsync_v2_ptsz(
        addr: u64, _len: usize, _location: Location, _flags: u32; stream
    ) |d| {
        d.stream(stream)?;
        managed(d, addr)
    };
}

/// Element `i` of a list of pointers for results.
fn out_at(outs: In<u64>, i: usize) -> R<Out<u64>> {
    let place = Out::from_addr(outs.at(i)?);
    place.check()?;
    Ok(place)
}
