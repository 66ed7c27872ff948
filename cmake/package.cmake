# `cpack` makes a .deb of the installed files. Libraries that are opened at run time are listed here; cpack finds the
# others.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "the authors of Remat <remat@localhost>")
set(CPACK_PACKAGE_VENDOR "Remat")
set(CPACK_RESOURCE_FILE_LICENSE ${CMAKE_SOURCE_DIR}/LICENSE)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
    WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
file(WRITE ${CMAKE_BINARY_DIR}/package/triggers "activate-noawait ldconfig\n") # for libremat.so
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${CMAKE_BINARY_DIR}/package/triggers)
if(REMAT_HAVE_OPENBLAS)
  set(CPACK_DEBIAN_PACKAGE_DEPENDS libopenblas0)
endif()
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "gnuplot-nox, pkg-config")
include(CPack)
