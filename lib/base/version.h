#ifndef DS_BASE_VERSION_H
#define DS_BASE_VERSION_H
#define DS_VERSION "0.1.0"
#define DS_FRAME_MINOR 1 /* ds-frame(5): grows when keys, types or elements are added */
#endif
