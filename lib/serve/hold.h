/*
 * Sources left unread while a program is full, to be read again when it is not.
 */
#ifndef DS_SERVE_HOLD_H
#define DS_SERVE_HOLD_H

#include "serve/stage.h"

struct held_sources { struct source **v; size_t n, cap; }; /* [n] who was paused first comes first */

/* Pauses src and remembers it; without memory it stays unpaused. */
void held_pause(struct held_sources *h, struct source *src);
/* Reads all again. */
void held_resume(struct held_sources *h);
/* Reads one again, if it is held here. */
void held_release(struct held_sources *h, struct source *src);
/* src is gone.  True if it was held. */
bool held_forget(struct held_sources *h, const struct source *src);
void held_free(struct held_sources *h);

#endif
