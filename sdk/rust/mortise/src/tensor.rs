//! Views of the host's tensors as slices.

use crate::{sys, Error, Result};

/// The elements of a tensor; `None` for one that is not given. Fails for a tensor that is not in host memory.
pub(crate) unsafe fn elements<'a, T>(tensor: *const sys::mortise_tensor, n: usize, name: &str) -> Result<Option<&'a mut [T]>> {
    let tensor = match tensor.as_ref() {
        Some(tensor) => tensor,
        None => return Ok(None),
    };
    if tensor.device_type != 1 {
        return Err(Error::invalid(format!("'{name}' is not in host memory")));
    }
    if n == 0 {
        return Ok(Some(&mut []));
    }
    let data = (tensor.data as *mut u8).add(tensor.byte_offset as usize) as *mut T;
    Ok(Some(std::slice::from_raw_parts_mut(data, n)))
}

pub(crate) unsafe fn mandatory<'a, T>(tensor: *const sys::mortise_tensor, n: usize, name: &str) -> Result<&'a mut [T]> {
    elements(tensor, n, name)?.ok_or_else(|| Error::invalid(format!("'{name}' is missing")))
}

/// An array of the layout, with one element per row or one more; empty for null.
pub(crate) unsafe fn array<'a, T>(data: *const T, n: usize) -> &'a [T] {
    if data.is_null() || n == 0 {
        return &[];
    }
    std::slice::from_raw_parts(data, n)
}
