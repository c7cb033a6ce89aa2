// SPDX-License-Identifier: Apache-2.0
// The shim's cuBLASLt is found where a loader looks for libraries by name; all else is as it is.
#pragma once

#include_next <dlfcn.h>

namespace diffserve::shim {

void* OpenLibrary(const char* path, int flags);
void* FindFunction(void* library, const char* name);
int CloseLibrary(void* library);

}  // namespace diffserve::shim

#define dlopen ::diffserve::shim::OpenLibrary
#define dlsym ::diffserve::shim::FindFunction
#define dlclose ::diffserve::shim::CloseLibrary
