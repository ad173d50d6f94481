//! User objects: what programs tie to the life of graphs.

use crate::callback::HostFn;
use crate::code::{INVALID_VALUE, R};
use crate::driver::{Driver, Tables};
use crate::ffi::{Out, export};

#[derive(Debug)]
pub(crate) struct UserObject {
    references: u32,
    destroy: HostFn,
    data: u64,
}

impl Tables {
    /// Gives references back; without any, the destructor is due.
    pub(super) fn release_object(&mut self, object: u64, count: u32) {
        if let Some(o) = self.graphs.objects.get_mut(&object) {
            o.references = o.references.saturating_sub(count);
        }
    }

    fn object(&mut self, object: u64) -> R<&mut UserObject> {
        let found = self.graphs.objects.get_mut(&object);
        found.filter(|o| o.references > 0).ok_or(INVALID_VALUE)
    }
}

impl Driver {
    /// Runs the destructors that are due, outside of all locks.
    pub(super) fn run_destructors(&self) {
        let due: Vec<UserObject> = {
            let mut t = self.tables();
            let objects = &mut t.graphs.objects;
            let dead = objects.iter().filter(|(_, o)| o.references == 0);
            let dead: Vec<u64> = dead.map(|(h, _)| *h).collect();
            dead.iter().filter_map(|h| objects.remove(h)).collect()
        };
        for o in due {
            (o.destroy)(o.data as *mut _);
        }
    }
}

export! {
    cuUserObjectCreate(
        out: Out<u64>, data: u64, destroy: Option<HostFn>, count: u32, flags: u32,
    ) |d| {
        out.check()?;
        let destroy = destroy.ok_or(INVALID_VALUE)?;
        // The only flag has to be set: destructors are not waited for.
        if flags != 1 || count == 0 || count > i32::MAX as u32 {
            return Err(INVALID_VALUE);
        }
        let mut t = d.tables();
        let handle = t.handle();
        t.graphs.objects.insert(handle, UserObject { references: count, destroy, data });
        out.set(handle)
    };
    cuUserObjectRetain(object: u64, count: u32) |d| {
        if count == 0 {
            return Err(INVALID_VALUE);
        }
        d.tables().object(object)?.references += count;
        Ok(())
    };
    cuUserObjectRelease(object: u64, count: u32) |d| {
        let mut t = d.tables();
        if count == 0 || t.object(object)?.references < count {
            return Err(INVALID_VALUE);
        }
        t.release_object(object, count);
        drop(t);
        d.run_destructors();
        Ok(())
    };
    cuGraphRetainUserObject(graph: u64, object: u64, count: u32, flags: u32) |d| {
        let mut t = d.tables();
        t.graph(graph)?;
        // Moved: the caller's references become the graph's.
        if count == 0 || flags > 1 {
            return Err(INVALID_VALUE);
        }
        let o = t.object(object)?;
        if flags == 0 {
            o.references += count;
        } else if o.references < count {
            return Err(INVALID_VALUE);
        }
        t.graph_mut(graph)?.objects.push((object, count));
        Ok(())
    };
    cuGraphReleaseUserObject(graph: u64, object: u64, count: u32) |d| {
        let mut t = d.tables();
        let held = &mut t.graph_mut(graph)?.objects;
        let found = held.iter().position(|o| o.0 == object && o.1 >= count && count > 0);
        let place = found.ok_or(INVALID_VALUE)?;
        held[place].1 -= count;
        t.release_object(object, count);
        drop(t);
        d.run_destructors();
        Ok(())
    };
}
