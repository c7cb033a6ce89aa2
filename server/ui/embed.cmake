# Writes OUTPUT, the source of UiFiles() with the bytes of FILES: cmake -DOUTPUT=... -DFILES=... -P
set(arrays "")
set(rows "")
set(index 0)
foreach(path IN LISTS FILES)
  get_filename_component(name ${path} NAME)
  file(READ ${path} bytes HEX)
  string(REGEX REPLACE "(..)" "\\\\x\\1" escaped "${bytes}")
  string(APPEND arrays "constexpr char kBytes${index}[] = \"${escaped}\";\n")
  string(APPEND rows "    {\"${name}\", {kBytes${index}, sizeof(kBytes${index}) - 1}},\n")
  math(EXPR index "${index} + 1")
endforeach()
file(WRITE ${OUTPUT} "#include \"server/ui/files.h\"

namespace diffserve {
namespace {

${arrays}
constexpr UiFile kFiles[] = {
${rows}};

}  // namespace

std::span<const UiFile> UiFiles() { return kFiles; }

}  // namespace diffserve
")
