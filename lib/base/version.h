#ifndef DS_BASE_VERSION_H
#define DS_BASE_VERSION_H
#define DS_VERSION "0.1.0"
#endif
