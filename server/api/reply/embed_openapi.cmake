# Writes OUTPUT, the source of OpenApiText() with the bytes of FILE:
# cmake -DOUTPUT=... -DFILE=... -P
file(READ ${FILE} bytes HEX)
string(REGEX REPLACE "(..)" "\\\\x\\1" escaped "${bytes}")
file(WRITE ${OUTPUT} "#include \"server/api/reply/openapi.h\"

namespace diffserve {

std::string_view OpenApiText() {
  static constexpr char kBytes[] = \"${escaped}\";
  return {kBytes, sizeof(kBytes) - 1};
}

}  // namespace diffserve
")
