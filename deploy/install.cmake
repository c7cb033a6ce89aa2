# What `cmake --install` puts where, and the Debian package of it (deploy/package.sh).
include(GNUInstallDirs)
install(TARGETS diffserve RUNTIME COMPONENT program)
# The bundled model, and its twin without a second map.
foreach(model diff:demo twin:twin)
  string(REGEX REPLACE ":.*" "" source ${model})
  string(REGEX REPLACE ".*:" "" name ${model})
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/models/demo/${source}/
          DESTINATION ${CMAKE_INSTALL_DATADIR}/diffserve/models/${name} COMPONENT program
          FILES_MATCHING PATTERN "*.json" PATTERN "*.safetensors" PATTERN "README.md")
endforeach()
install(FILES README.md CHANGELOG.md LICENSE NOTICE THIRD_PARTY.md deploy/third_party_licences.txt
        DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program
        FILES_MATCHING PATTERN "*.md" PATTERN "openapi.yaml")
install(CODE [[
  foreach(file bash:bash-completion/completions/diffserve
      fish:fish/vendor_completions.d/diffserve.fish)
    string(REGEX REPLACE ":.*" "" shell ${file})
    string(REGEX REPLACE ".*:" "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/share/" path ${file})
    cmake_path(GET path PARENT_PATH folder)
    file(MAKE_DIRECTORY ${folder})
    execute_process(COMMAND $<TARGET_PROPERTY:diffserve,CROSSCOMPILING_EMULATOR>
        $<TARGET_FILE:diffserve> completion ${shell} OUTPUT_FILE ${path} COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
]] COMPONENT program)
# Debian's name for the licence of a package.
install(FILES NOTICE RENAME copyright DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT program)
# The service is for the package alone, whose paths its files name.
install(FILES deploy/config.json DESTINATION /etc/diffserve COMPONENT service EXCLUDE_FROM_ALL)
install(FILES deploy/diffserve.service DESTINATION /lib/systemd/system COMPONENT service
  EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
# Debian sorts what follows a ~ before the version without it.
string(REPLACE ".dev" "~dev" CPACK_PACKAGE_VERSION ${build_version})
set(CPACK_PACKAGE_CONTACT "diffserve maintainers <maintainers@diffserve.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference server for Diff Transformer models")
set(CPACK_PACKAGE_DESCRIPTION
    "OpenAI-style HTTP API and gRPC, continuous batching over a paged KV\n\
cache, a prefix cache. One binary for x86-64 CPUs, fast from AVX2 up, a\n\
systemd unit and a small model to try it with.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_CMAKE_PROJECTS
  "${CMAKE_BINARY_DIR};diffserve;program;/;${CMAKE_BINARY_DIR};diffserve;service;/")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/package/conffiles CONTENT "/etc/diffserve/config.json\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/package/conffiles
  ${CMAKE_SOURCE_DIR}/deploy/package/postinst
    ${CMAKE_SOURCE_DIR}/deploy/package/prerm ${CMAKE_SOURCE_DIR}/deploy/package/postrm)
include(CPack)
