# What `cmake --install` puts where: the binary, the bundled model, the documents.
include(GNUInstallDirs)
install(TARGETS diffserve RUNTIME)
set(demo_model ${CMAKE_SOURCE_DIR}/models/demo/diff)
install(FILES ${demo_model}/config.json ${demo_model}/generation_config.json ${demo_model}/model.safetensors
              ${demo_model}/tokenizer.json ${demo_model}/tokenizer_config.json ${demo_model}/README.md
        DESTINATION ${CMAKE_INSTALL_DATADIR}/diffserve/models/demo)
install(FILES README.md CHANGELOG.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
