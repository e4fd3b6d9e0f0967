/* Shared by ds-frame's commands that write frames. */
#ifndef DS_FRAME_SLICE_H
#define DS_FRAME_SLICE_H

#include "base/outfile.h"
#include "frame/tools.h"

struct slice_out {
	struct outfile file;
	struct frame_writer *w;
	struct meta_builder *meta; /* scratch */
};

/* The output opened; DS_USAGE for a terminal or a file that exists. */
int slice_open(struct slice_out *out, const struct tool_options *o, struct ds_err *err);
/* After a run with result rc: END and the rename where it is 0, else what was written is removed.  rc, or the error. */
int slice_close(struct slice_out *out, int rc, struct ds_err *err);

#endif
