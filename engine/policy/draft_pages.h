// SPDX-License-Identifier: Apache-2.0
// DraftPages: the slots of each page that contain K and V of the draft model. A page id names the
// same slots in both models' memory. The draft model computes them later than the model, or never.
// A page that sequences share gets them once, from any of them: same tokens, same bits. Numbers
// only. Owned by the Scheduler.
//
// Invariants:
// - The leading `count` slots of a page are drafted; if not all, no later page of a sequence's
// table
//   has any.
// - Drafted tokens of a sequence are committed, or computed by the step in flight.
// - In a step, at most one sequence drafts a page. Sequences that share a page share all pages
//   before it. So two of them would write the same first page, and one has to wait for a step.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/policy/draft_work.h"

namespace diffserve {

struct Sequence;

class DraftPages {
 public:
  DraftPages(int num_pages, int page_size)
      : page_size_(page_size), counts_(static_cast<size_t>(num_pages)) {}

  // The page gets new content.
  void Clear(int32_t page) { counts_[static_cast<size_t>(page)] = 0; }
  void BeginPlan() { first_pages_.clear(); }
  // Leading tokens of the sequence that are drafted.
  int Count(Sequence& sequence) const;
  // Whether the sequence may be drafted in this plan; true reserves the pages.
  bool Reserve(const Sequence& sequence, int num_drafted);
  // The plan drafts the sequence. REQUIRES: Reserve was true.
  void Take(const Sequence& sequence, const DraftWork& work);
  // Tokens from `end` on were wrong. REQUIRES: `end` lies in the sequence's last page, or ends it.
  void Cut(Sequence& sequence, int end);
  void CheckInvariants(const Sequence& sequence) const;

 private:
  const int page_size_;
  std::vector<int> counts_;           // [pages]
  std::vector<int32_t> first_pages_;  // that the plan's sequences draft
};

}  // namespace diffserve
