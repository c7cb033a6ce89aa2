// SPDX-License-Identifier: Apache-2.0
// Stream: an order of work on one device, owned by one thread. Event: a point in a stream that a
// host thread can wait for. No CUDA header is needed to use them.
//
// Thread safety: none; but another thread than the one that recorded an Event may wait for it.
#pragma once

#include <memory>

#include "kernels/base/cuda/error.h"

struct CUevent_st;   // CUDA's own,
struct CUstream_st;  // opaque here

namespace diffserve::cuda {

class Event {
 public:
  // `timed`: usable for MillisecondsBetween, at the price of a slower record.
  static Result<Event> Create(bool timed = false);

  CUevent_st* handle() const { return handle_.get(); }
  // Blocks the calling thread (asleep, not spinning) until the work before the event is done.
  // Returns that work's errors.
  Status Wait() const;

 private:
  struct Destroy {
    void operator()(CUevent_st* event) const;
  };
  explicit Event(CUevent_st* handle) : handle_(handle) {}
  std::unique_ptr<CUevent_st, Destroy> handle_;
};

class Stream {
 public:
  // On the calling thread's device. Does not synchronise with CUDA's default stream.
  static Result<Stream> Create();

  // Makes the stream's device the calling thread's. CUDA starts each thread on device 0, so a
  // thread calls this before all else that it does with the stream or the device's memory.
  Status UseDevice() const;
  CUstream_st* handle() const { return handle_.get(); }
  Status Record(const Event& event) const;
  // Blocks the calling thread until all queued work is done. Returns that work's errors.
  Status Synchronize() const;

 private:
  struct Destroy {
    void operator()(CUstream_st* stream) const;
  };
  Stream(CUstream_st* handle, int device) : handle_(handle), device_(device) {}
  std::unique_ptr<CUstream_st, Destroy> handle_;
  int device_;
};

// REQUIRES: both events are timed, recorded and done.
Result<float> MillisecondsBetween(const Event& begin, const Event& end);

}  // namespace diffserve::cuda
