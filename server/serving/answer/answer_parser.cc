// SPDX-License-Identifier: Apache-2.0
#include "server/serving/answer/answer_parser.h"

#include <array>
#include <span>

#include "server/serving/tools/call_scanner.h"
#include "server/serving/tools/json_scanner.h"

namespace diffserve {
namespace {

constexpr size_t kMaxHeldSpaces = 4096;  // before what could be a marker

}  // namespace

struct AnswerParser::State : CallSink {
  enum class Place {
    kReasoning,
    kText,
    kCall,       // a call, or text that may become one
    kArguments,  // the rest is the named tool's arguments
    kDropped,
  };
  enum class Marker { kReasoningBegin, kReasoningEnd, kCallBegin, kBareCallBegin, kCallEnd };
  using Markers = std::array<std::pair<std::string_view, Marker>, 4>;

  State(const AnswerForm& form_in, ReasoningStart start) : form(form_in) {
    const bool reasons = form.reasoning != nullptr;
    reasoning_may_begin = reasons && start == ReasoningStart::kMayOpen;
    drops_spaces = reasoning_may_begin && form.has_form;
    if (reasons && start == ReasoningStart::kOpen)
      EnterReasoning();
    else if (!reasoning_may_begin)
      BeginForced();
  }

  void Push(char c);
  void InText(char c);
  void InCall(char c);
  std::span<const std::pair<std::string_view, Marker>> Sought(Markers* markers) const;
  void Found(Marker marker);
  void Shown(char c);
  void EnterReasoning();
  void BeginForced();
  void EnterCall(std::string_view marker);
  void LeaveCall(Place to);
  void Restore();
  void GiveUp();
  void Emit(AnswerPart::Kind kind, std::string_view text);
  AnswerPart::Kind TextKind() const {
    return place == Place::kReasoning ? AnswerPart::Kind::kReasoning : AnswerPart::Kind::kContent;
  }
  // Whether a call may begin here without its marker.
  bool MayBeBare() const {
    return !form.tools->bare_begin.empty() && (fresh || !form.tools->bare_at_start_only);
  }
  bool MayGoOnWithCalls(char c);
  // Whether the held text is part of a call's marker. Its first byte alone counts only directly
  // after a call.
  bool CutsCallMarker() const {
    if (place != Place::kText || form.tools == nullptr || form.forced_call) return false;
    const bool after_call = fresh && calls > 0;
    return held.size() > (after_call ? 0u : 1u) &&
           (form.tools->begin.starts_with(held) || form.tools->bare_begin.starts_with(held) ||
            (end_due && form.tools->end.starts_with(held)));
  }

  bool BeginCall(std::string_view name) override;
  void Arguments(std::string_view text) override;
  void EndCall() override { in_call = false; }

  const AnswerForm form;
  std::vector<AnswerPart>* out = nullptr;
  Place place = Place::kText;
  bool reasoning_may_begin = false;  // only whitespace came so far
  bool fresh = true;                 // only whitespace came so far or since the last call
  bool drops_spaces = false;         // spaces next to a marker
  bool end_due = false;              // the closing marker of a call
  std::string spaces;                // spaces that a marker may follow
  std::string held;                  // the beginning of a marker
  std::string raw;                   // text that may become a call, from its marker on
  bool marked = false;  // `raw` began with a marker, not with a brace or name as text may have too
  std::unique_ptr<CallScanner> scanner;
  JsonScanner arguments;  // of the last call
  bool arguments_ended = false;
  bool in_call = false;  // the call has begun, so its arguments are passed on
  int calls = 0;
  int calls_before = 0;  // index of this scanner's first call
};

void AnswerParser::State::Emit(AnswerPart::Kind kind, std::string_view text) {
  if (text.empty() && kind != AnswerPart::Kind::kToolCall) return;
  const bool of_call = kind == AnswerPart::Kind::kToolCall ||
                       kind == AnswerPart::Kind::kToolArguments;
  const int call = of_call ? calls - 1 : 0;
  if (out->empty() || out->back().kind != kind || out->back().call != call)
    out->push_back({kind, call, {}});
  out->back().text += text;
}

void AnswerParser::State::EnterReasoning() {
  place = Place::kReasoning;
  reasoning_may_begin = false;
  drops_spaces = true;
}

// The answer itself begins, without reasoning or after it.
void AnswerParser::State::BeginForced() {
  place = Place::kText;
  reasoning_may_begin = false;
  if (!form.forced_call) return;
  if (form.forced_name.empty())
    EnterCall({});
  else
    place = Place::kArguments;
}

void AnswerParser::State::EnterCall(std::string_view marker) {
  marked = !marker.empty();
  reasoning_may_begin = false;
  if (form.forced_call) {
    scanner = NewJsonCallScanner({.object = false});
  } else if (form.tools->syntax == ToolCallSyntax::kXml) {
    scanner = NewXmlCallScanner(form.parameter_types);
  } else if (form.tools->syntax == ToolCallSyntax::kNamedJson) {
    scanner = NewNamedJsonCallScanner();
  } else {
    scanner = NewJsonCallScanner({.list = marked, .needs_arguments = !marked});
  }
  place = Place::kCall;
  raw = marker;
  calls_before = calls;
  end_due = false;
}

bool AnswerParser::State::BeginCall(std::string_view name) {
  if (calls == kMaxCalls) return false;
  ++calls;
  in_call = true;
  raw.clear();
  spaces.clear();
  arguments = {};
  arguments_ended = false;
  Emit(AnswerPart::Kind::kToolCall, name);
  return true;
}

void AnswerParser::State::Arguments(std::string_view text) {
  for (const char c : text)
    arguments_ended = arguments_ended || arguments.Push(c) == JsonScanner::Step::kEnd;
  Emit(AnswerPart::Kind::kToolArguments, text);
}

// Text that looked like a call is content.
void AnswerParser::State::Restore() {
  Emit(AnswerPart::Kind::kContent, spaces);
  Emit(AnswerPart::Kind::kContent, raw);
  spaces.clear();
  raw.clear();
  fresh = false;
}

void AnswerParser::State::LeaveCall(Place to) {
  scanner.reset();
  in_call = false;
  place = to;
  raw.clear();
  drops_spaces = true;
}

// It was not a call: the held text is content.
void AnswerParser::State::GiveUp() {
  Restore();
  LeaveCall(Place::kText);
  drops_spaces = false;
}

void AnswerParser::State::InCall(char c) {
  const bool was_in_call = in_call;
  const int calls_then = calls;
  const CallScanner::Step step = scanner->Push(c, *this);
  if (step == CallScanner::Step::kWrong) {
    if (in_call) {
      LeaveCall(Place::kText);
      end_due = !form.forced_call && !form.tools->end.empty();
    } else {
      GiveUp();
    }
    return Push(c);
  }
  if (in_call) return;
  if (was_in_call || calls > calls_then) {  // a call ends
    if (!form.parallel) return LeaveCall(Place::kDropped);
  } else {
    raw += c;
    if (raw.size() > kMaxHeldCallBytes) return GiveUp();
  }
  if (step != CallScanner::Step::kEnd) return;
  if (calls == calls_before) return GiveUp();
  LeaveCall(Place::kText);
  fresh = true;
  end_due = !form.forced_call && !form.tools->end.empty();
}

// The markers that may come next.
std::span<const std::pair<std::string_view, AnswerParser::State::Marker>>
AnswerParser::State::Sought(Markers* markers) const {
  size_t count = 0;
  const auto add = [&](std::string_view text, Marker marker) {
    if (!text.empty()) (*markers)[count++] = {text, marker};
  };
  if (place == Place::kReasoning) {
    add(form.reasoning->end, Marker::kReasoningEnd);
    if (drops_spaces) add(form.reasoning->begin, Marker::kReasoningBegin);
    return {markers->data(), count};
  }
  if (reasoning_may_begin) add(form.reasoning->begin, Marker::kReasoningBegin);
  if (form.tools == nullptr || form.forced_call) return {markers->data(), count};
  add(form.tools->begin, Marker::kCallBegin);
  if (MayBeBare()) add(form.tools->bare_begin, Marker::kBareCallBegin);
  if (end_due) add(form.tools->end, Marker::kCallEnd);
  return {markers->data(), count};
}

void AnswerParser::State::Found(Marker marker) {
  switch (marker) {
    case Marker::kReasoningBegin:
      EnterReasoning();
      break;
    case Marker::kReasoningEnd:
      drops_spaces = true;
      BeginForced();
      break;
    case Marker::kCallBegin:
      return EnterCall(form.tools->begin);  // it keeps the spaces: it may be none
    case Marker::kBareCallBegin:
      EnterCall({});
      marked = form.tools->syntax == ToolCallSyntax::kXml;
      for (const char c : form.tools->bare_begin) InCall(c);
      return;
    case Marker::kCallEnd:
      end_due = false;
      break;
  }
  spaces.clear();
}

// Accepts `c` if it may occur between calls.
bool AnswerParser::State::MayGoOnWithCalls(char c) {
  if (form.tools == nullptr || form.forced_call || !fresh || calls == 0) return false;
  if (form.tools->bare_at_start_only && c == ';') {
    spaces += c;
    return true;
  }
  if (form.tools->syntax != ToolCallSyntax::kNamedJson || c == '[' || c == '{') return false;
  EnterCall({});  // the next call's name
  if (c == ',')
    raw += c;
  else
    InCall(c);
  return true;
}

// A byte of no marker.
void AnswerParser::State::Shown(char c) {
  if (IsJsonSpace(c)) {
    if (!drops_spaces) spaces += c;
    if (spaces.size() <= kMaxHeldSpaces) return;
    Emit(TextKind(), spaces);
    return spaces.clear();
  }
  if (place == Place::kText && reasoning_may_begin) {
    BeginForced();
    if (place != Place::kText) {
      spaces.clear();
      return Push(c);
    }
  }
  if (place == Place::kText && MayGoOnWithCalls(c)) return;
  Emit(TextKind(), spaces);
  Emit(TextKind(), {&c, 1});
  spaces.clear();
  drops_spaces = false;
  if (place != Place::kText) return;
  fresh = false;
  end_due = false;
}

void AnswerParser::State::InText(char c) {
  held += c;
  while (!held.empty()) {
    Markers markers;
    bool may = false;
    for (const auto& [text, marker] : Sought(&markers)) {
      if (text == held) {
        held.clear();
        return Found(marker);
      }
      may = may || text.starts_with(held);
    }
    if (may) return;
    // Its first byte belongs to no marker. The state that this byte begins reads the rest.
    const std::string rest = held.substr(1);
    const char first = held.front();
    held.clear();
    Shown(first);
    if (rest.empty()) return;
    if (place == Place::kText || place == Place::kReasoning) {
      held = rest;
      continue;
    }
    for (const char next : rest) Push(next);
  }
}

void AnswerParser::State::Push(char c) {
  switch (place) {
    case Place::kReasoning:
    case Place::kText:
      return InText(c);
    case Place::kCall:
      return InCall(c);
    case Place::kArguments:
      if (calls == 0) {
        if (IsJsonSpace(c)) return;
        BeginCall(form.forced_name);
      }
      return Arguments({&c, 1});
    case Place::kDropped:
      return;
  }
}

AnswerParser::AnswerParser(const AnswerForm& form, ReasoningStart start)
    : state_(std::make_unique<State>(form, start)) {}
AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;
AnswerParser& AnswerParser::operator=(AnswerParser&&) noexcept = default;

void AnswerParser::Push(std::string_view text, std::vector<AnswerPart>* out) {
  state_->out = out;
  for (const char c : text) state_->Push(c);
}

void AnswerParser::Finish(bool cut, std::vector<AnswerPart>* out) {
  State& state = *state_;
  state.out = out;
  if (state.place == State::Place::kCall) {
    if (!cut) state.scanner->Finish(state);
    const bool of_call = state.calls > state.calls_before || state.form.forced_call;
    if (!of_call && !(cut && state.marked)) state.Restore();
    return;
  }
  if (state.place != State::Place::kText && state.place != State::Place::kReasoning) return;
  state.Emit(state.TextKind(), state.spaces);
  if (cut && state.CutsCallMarker()) return;
  state.Emit(state.TextKind(), state.held);
}

bool AnswerParser::in_reasoning() const { return state_->place == State::Place::kReasoning; }
int AnswerParser::num_calls() const { return state_->calls; }
bool AnswerParser::last_call_is_whole() const { return state_->arguments_ended; }

}  // namespace diffserve
