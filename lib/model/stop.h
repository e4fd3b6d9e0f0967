/*
 * Stop strings in a growing text of bytes: when one is complete, and how much of the text's end may still become one.
 *
 * What is found does not depend on how the text was cut into pieces: the first byte that completes a stop string ends
 * the text; of several that it completes, the one that begins earliest (the longest).  It costs a few comparisons a
 * byte and stop string (Knuth, Morris, Pratt, 1977).
 */
#ifndef DS_MODEL_STOP_H
#define DS_MODEL_STOP_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "frame/messages.h"

struct stop_matcher;

struct stop_found {
	size_t which;  /* of the stop strings */
	size_t cut;    /* bytes to be dropped from the end of the text so far: it ends where the stop string begins */
};

/* The strings are copied, each of 1 to 256 bytes.  DS_OS. */
int stop_new(struct stop_matcher **m, const struct stop_string *strings, size_t count, struct ds_err *err);
/* Another one for a text of its own, in the state that m is in. */
int stop_copy(struct stop_matcher **m, const struct stop_matcher *from, struct ds_err *err);
void stop_free(struct stop_matcher *m);

/* The text's next bytes.  True where a stop string is complete in them; nothing may be fed after that. */
bool stop_feed(struct stop_matcher *m, const char *p, size_t n, struct stop_found *found);
/* Bytes at the end of the text that begin a stop string: the longest suffix that is a proper prefix of one. */
size_t stop_hold(const struct stop_matcher *m);

#endif
