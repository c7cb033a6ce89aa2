#include "server/answer/answer_parser.h"

#include <array>
#include <span>

#include "server/answer/call_scanner.h"

namespace diffserve {
namespace {

constexpr size_t kMaxHeldSpaces = 4096;  // before what could be a marker

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

}  // namespace

struct AnswerParser::State : CallSink {
  enum class Place {
    kReasoning,
    kText,
    kCall,       // what is or could be a call
    kArguments,  // all that is left, of the named tool
    kDropped,
  };
  enum class Marker { kReasoningBegin, kReasoningEnd, kCallBegin, kCallEnd, kCallPrefix };
  using Markers = std::array<std::pair<std::string_view, Marker>, 3>;

  explicit State(const AnswerForm& form_in) : form(form_in) {
    reasoning_may_begin = form.reasoning != nullptr;
    if (form.reasoning != nullptr && form.reasoning->opened_by_template)
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
  bool bare() const {
    return form.tools != nullptr && form.tools->begin.empty() && !form.forced_call;
  }

  bool BeginCall(std::string_view name) override;
  void Arguments(std::string_view text) override { Emit(AnswerPart::Kind::kToolArguments, text); }
  void EndCall() override { in_call = false; }

  const AnswerForm form;
  std::vector<AnswerPart>* out = nullptr;
  Place place = Place::kText;
  bool reasoning_may_begin = false;  // nothing but whitespace came so far
  bool fresh = true;                 // no content but whitespace came so far
  bool drops_spaces = false;         // those beside a marker
  bool end_due = false;              // the marker behind a call
  std::string spaces;                // that a marker may follow
  std::string held;                  // the beginning of a marker
  std::string raw;                   // what could become a call, from its marker on
  std::unique_ptr<CallScanner> scanner;
  bool in_call = false;  // it has begun, so it is handed on
  int calls = 0;
  int calls_before = 0;  // this scanner's first one
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

// The answer itself begins, without reasoning or behind it.
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
  const ToolCallSyntax syntax = form.forced_call ? ToolCallSyntax::kJsonList : form.tools->syntax;
  if (syntax == ToolCallSyntax::kXml) {
    scanner = NewXmlCallScanner(form.text_parameters);
  } else {
    scanner = NewJsonCallScanner(
        {.list = syntax == ToolCallSyntax::kJsonList, .needs_arguments = bare()});
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
  Emit(AnswerPart::Kind::kToolCall, name);
  return true;
}

// What looked like a call is content.
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

// It was no call: what was held is content.
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
    if (in_call)
      LeaveCall(Place::kText);
    else
      GiveUp();
    return Push(c);
  }
  if (in_call) return;
  if (was_in_call || calls > calls_then) {  // a call ends
    if (!form.parallel) return LeaveCall(Place::kDropped);
  } else {
    raw += c;
    if (raw.size() > kMaxHeldBytes) return GiveUp();
  }
  if (step != CallScanner::Step::kEnd) return;
  if (calls == calls_before) return GiveUp();
  LeaveCall(Place::kText);
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
  if (end_due) add(form.tools->end, Marker::kCallEnd);
  if (bare() && fresh) add(form.tools->prefix, Marker::kCallPrefix);
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
    case Marker::kCallPrefix:
      return EnterCall(form.tools->prefix);
    case Marker::kCallEnd:
      end_due = false;
      break;
  }
  spaces.clear();
}

// A byte of no marker.
void AnswerParser::State::Shown(char c) {
  if (IsSpace(c)) {
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
  if (place == Place::kText && bare() && fresh) {
    if (c == '{') {
      EnterCall({});
      return InCall(c);
    }
    if (c == ';' && calls > 0) {  // stands between calls
      spaces += c;
      return;
    }
  }
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
    // Its first byte belongs to no marker. What that begins takes the rest.
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
        if (IsSpace(c)) return;
        BeginCall(form.forced_name);
      }
      return Arguments({&c, 1});
    case Place::kDropped:
      return;
  }
}

AnswerParser::AnswerParser(const AnswerForm& form) : state_(std::make_unique<State>(form)) {}
AnswerParser::~AnswerParser() = default;
AnswerParser::AnswerParser(AnswerParser&&) noexcept = default;

void AnswerParser::Push(std::string_view text, std::vector<AnswerPart>* out) {
  state_->out = out;
  for (const char c : text) state_->Push(c);
}

void AnswerParser::Finish(std::vector<AnswerPart>* out) {
  State& state = *state_;
  state.out = out;
  if (state.place == State::Place::kCall) {
    if (!state.in_call) state.Restore();
    return;
  }
  if (state.place != State::Place::kText && state.place != State::Place::kReasoning) return;
  state.Emit(state.TextKind(), state.spaces);
  state.Emit(state.TextKind(), state.held);
}

bool AnswerParser::in_reasoning() const { return state_->place == State::Place::kReasoning; }
int AnswerParser::num_calls() const { return state_->calls; }

}  // namespace diffserve
