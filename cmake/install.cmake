# What `cmake --install` installs:
#
#   bin/remat    include/remat.h, remat_op.h, remat/*.h    lib/libremat.a [libremat.so]    lib/pkgconfig/remat.pc    lib/cmake/Remat/*.cmake
#   share/doc/remat: README.md and all other pages, examples, files that the pages link to, the licence
#   share/man/man1/remat.1    share/bash-completion/completions/remat    share/zsh/site-functions/_remat
#   [lib/remat/remat_mpi.so, remat_gloo.so: loaded on demand, dist/group/module.h]
#
# Parts that were not built are left out: after `cmake --build build --target remat_shared` that library alone is installed.
# A static archive does not record the libraries it needs, so both the CMake package and the pkg-config file list them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Remat)

install(FILES engine/remat.h engine/remat_op.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY engine/remat DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS ${remat_public} EXPORT Remat ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} OPTIONAL)
install(EXPORT Remat NAMESPACE Remat:: DESTINATION ${package_dir})
if(REMAT_PROGRAM)
  install(TARGETS remat_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} OPTIONAL)
endif()
if(TARGET remat_manual)
  install(FILES ${CMAKE_BINARY_DIR}/train/remat.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
  install(FILES ${CMAKE_BINARY_DIR}/train/remat.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
          RENAME remat OPTIONAL)
  install(CODE "
    set(zsh site-functions)
    if(CMAKE_INSTALL_PREFIX STREQUAL \"/usr\" AND EXISTS /etc/debian_version) # where Debian's zsh looks for packages' own
      set(zsh vendor-completions)
    endif()
    if(EXISTS ${CMAKE_BINARY_DIR}/train/_remat)
      file(INSTALL ${CMAKE_BINARY_DIR}/train/_remat
           DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/zsh/\${zsh}\")
    endif()")
endif()

foreach(module mpi gloo)
  if(TARGET remat_${module})
    install(TARGETS remat_${module} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/remat OPTIONAL)
  endif()
endforeach()

# ---- For the Python package alone (python/pyproject.toml): cmake --install BUILD --component python.
if(TARGET remat_shared)
  install(FILES $<TARGET_FILE:remat_shared> DESTINATION remat/lib RENAME libremat.so.${PROJECT_VERSION_MAJOR}
          COMPONENT python EXCLUDE_FROM_ALL)
endif()

# ---- Documents: all pages, the files that they link to, and the licence where Debian looks for it.
set(doc_dir ${CMAKE_INSTALL_DATADIR}/doc/remat)
file(GLOB pages RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS *.md */README.md)
file(GLOB_RECURSE more_pages RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS docs/*.md examples/*.md)
foreach(page ${pages} ${more_pages})
  cmake_path(GET page PARENT_PATH folder)
  install(FILES ${page} DESTINATION ${doc_dir}/${folder})
  file(READ ${page} text)
  string(REPLACE "](" "@@" text "${text}") # to a list of CMake's, brackets and semicolons mean something
  string(REGEX REPLACE "[][;]" " " text "${text}")
  string(REGEX MATCHALL "@@[^) #]+" links "${text}")
  foreach(link ${links})
    string(SUBSTRING ${link} 2 -1 link)
    cmake_path(ABSOLUTE_PATH link BASE_DIRECTORY ${CMAKE_SOURCE_DIR}/${folder} NORMALIZE)
    if(EXISTS "${link}" AND NOT IS_DIRECTORY "${link}")
      cmake_path(RELATIVE_PATH link BASE_DIRECTORY ${CMAKE_SOURCE_DIR})
      cmake_path(GET link PARENT_PATH folder_of_link)
      install(FILES ${link} DESTINATION ${doc_dir}/${folder_of_link})
    endif()
  endforeach()
endforeach()
install(FILES LICENSE DESTINATION ${doc_dir} RENAME copyright)
install(DIRECTORY docs examples DESTINATION ${doc_dir} PATTERN CMakeLists.txt EXCLUDE PATTERN "check*.sh" EXCLUDE)

# ---- CMake package ---------------------------------------------------------------------------------------------------
configure_package_config_file(cmake/RematConfig.cmake.in ${CMAKE_BINARY_DIR}/RematConfig.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/RematConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/RematConfig.cmake ${CMAKE_BINARY_DIR}/RematConfigVersion.cmake
        DESTINATION ${package_dir})

# ---- pkg-config. With libremat.so installed the needs are private; with the archive alone everybody needs them. -------
file(RELATIVE_PATH to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" to_prefix ${to_prefix})
set(needs "")
if(REMAT_HAVE_CUDA)
  list(APPEND needs ${CUDART_STATIC_LIBRARY} -lrt)
endif()
foreach(name ${OpenMP_C_LIB_NAMES})
  list(APPEND needs -l${name})
endforeach()
list(APPEND needs ${REMAT_SANITIZE_FLAGS} ${CMAKE_THREAD_LIBS_INIT})
foreach(name ${CMAKE_DL_LIBS} m)
  list(APPEND needs -l${name})
endforeach()
list(JOIN needs " " needs)
set(REMAT_LIBS_PUBLIC "")
set(REMAT_LIBS_PRIVATE "")
if(REMAT_SHARED)
  set(REMAT_LIBS_PRIVATE ${needs})
else()
  set(REMAT_LIBS_PUBLIC ${needs})
endif()
configure_file(cmake/remat.pc.in ${CMAKE_BINARY_DIR}/remat.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/remat.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
