/* Load frames in ds-frame stat: what each rank did over the whole of a capture. */
#ifndef DS_FRAME_STAT_LOAD_H
#define DS_FRAME_STAT_LOAD_H

#include "base/json.h"
#include "frame/messages_unit.h"

struct stat_rank {
	uint64_t frames, interval_ns, steps, rows, chosen, computed, sent_bytes, received_bytes;
	uint64_t *waited_ns;        /* [world] for each peer */
	uint64_t world;
};
struct stat_load { struct stat_rank *ranks; size_t n; }; /* by rank; those without frames are empty */

int stat_load_add(struct stat_load *s, const struct frame *f, struct ds_err *err);
void stat_load_text(const struct stat_load *s, struct buf *b);
void stat_load_json(const struct stat_load *s, struct jw *w); /* key "loads" of an object */
void stat_load_free(struct stat_load *s);

#endif
