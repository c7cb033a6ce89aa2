// SPDX-License-Identifier: Apache-2.0
//! Values that cross the interface: what C++ lends is read, what it gets is handed over.

use panics::{one_line, without_panic};

/// Borrowed bytes of the caller, valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfiStr {
    data: *const u8,
    size: usize,
}

impl FfiStr {
    pub(crate) unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.data, self.size)
    }

    pub(crate) unsafe fn text<'a>(self, what: &str) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes())
            .map_err(|e| format!("{what} is not UTF-8 at byte {}", e.valid_up_to()))
    }
}

/// Bytes owned by this library: `ffi_bytes_free`. All zero is empty and need not be freed.
#[repr(C)]
pub struct FfiBytes {
    data: *mut u8,
    size: usize,
    capacity: usize,
}

impl FfiBytes {
    pub(crate) fn new(mut bytes: Vec<u8>) -> Self {
        let out =
            FfiBytes { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() };
        std::mem::forget(bytes);
        out
    }
}

/// Numbers owned by this library: `ffi_ids_free`. All zero is empty and need not be freed.
#[repr(C)]
pub struct FfiIds {
    data: *mut u32,
    size: usize,
    capacity: usize,
}

impl FfiIds {
    pub(crate) fn new(mut ids: Vec<u32>) -> Self {
        let out = FfiIds { data: ids.as_mut_ptr(), size: ids.len(), capacity: ids.capacity() };
        std::mem::forget(ids);
        out
    }
}

/// Borrowed numbers of the caller, valid during the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FfiNumbers {
    data: *const u32,
    size: usize,
}

impl FfiNumbers {
    pub(crate) unsafe fn slice<'a>(self) -> &'a [u32] {
        if self.size == 0 {
            return &[];
        }
        std::slice::from_raw_parts(self.data, self.size)
    }
}

/// The result of `work`; if it fails, `on_error`, and the reason in `*error` unless that is null.
pub fn guard<T>(error: *mut FfiBytes, on_error: T, work: impl FnOnce() -> Result<T, String>) -> T {
    let message = match without_panic(work) {
        Ok(value) => return value,
        Err(message) => message,
    };
    if !error.is_null() {
        unsafe { error.write(FfiBytes::new(one_line(&message).into_bytes())) };
    }
    on_error
}

#[no_mangle]
pub unsafe extern "C" fn ffi_bytes_free(bytes: FfiBytes) {
    if !bytes.data.is_null() {
        drop(Vec::from_raw_parts(bytes.data, bytes.size, bytes.capacity));
    }
}

#[no_mangle]
pub unsafe extern "C" fn ffi_ids_free(ids: FfiIds) {
    if !ids.data.is_null() {
        drop(Vec::from_raw_parts(ids.data, ids.size, ids.capacity));
    }
}
