/*
 * Tensors of captures to and from safetensors files, so that what another engine dumped can be compared.
 *
 * A tensor is named as its point, `layer.3.attn_out`, and is [tokens, columns], its rows by rising position; where a
 * file holds several requests, REQUEST/ stands before it: a request's name, or its stream id as 16 hexadecimal digits.
 * Rows that are not those of positions 0, 1, 2, ... have them in a second tensor, I64 [tokens], named
 * NAME.positions.
 */
#ifndef DS_MODEL_PACK_H
#define DS_MODEL_PACK_H

#include "frame/tools.h"

/* All tensors of a capture into one safetensors file. */
int tool_pack(const struct tool_options *o, const char *path, struct ds_err *err);

struct unpack_options {
	const char *request;         /* whose tensors those without a REQUEST/ are; NULL: "r0" */
	/* "FROM=TO": stars in TO are what those of FROM matched.  None: names as they are */
	const struct opt_list *maps;
};
/* A safetensors file as a capture.  With maps, tensors that none of them matches are left out. */
int tool_unpack(const struct tool_options *o, const struct unpack_options *u, const char *path, struct ds_err *err);

/* One map: true where name matches FROM; dst is TO with its stars filled in.  DS_USAGE for text that is no map. */
int map_check(const char *map, struct ds_err *err);
bool map_name(const char *map, const char *name, size_t n, char *dst, size_t cap);

#endif
