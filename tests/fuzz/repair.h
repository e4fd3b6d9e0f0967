/* Getting mutated streams past the frame reader's checksums. */
#ifndef DS_TESTS_REPAIR_H
#define DS_TESTS_REPAIR_H

#include <string.h>

#include "frame/internal.h"

/* Makes each frame that begins where the last one ends agree with its own lengths, number and checksum. */
static void repair(uint8_t *p, size_t n)
{
	size_t at = 0;

	for (uint64_t number = 0; n - at >= FRAME_HEAD_BYTES + FRAME_BIN_BYTES; number++) {
		uint8_t *h = p + at;
		size_t room = n - at - FRAME_HEAD_BYTES - FRAME_BIN_BYTES, meta, body;

		meta = get_be32(h + 30) % (room + 1);
		body = get_be32(h + 35) % (room - meta + 1);
		memcpy(h, "\x9a\xa4" "DSF1\xcc", 7);
		h[8] = 0xcd;
		h[11] = h[20] = 0xcf;
		h[29] = h[34] = h[39] = 0xce;
		put_be64(h + 21, number);
		put_be32(h + 30, (uint32_t)meta);
		put_be32(h + 35, (uint32_t)body);
		put_be32(h + 40, crc32_add(crc32_add(0, h, 39), h + FRAME_HEAD_BYTES, meta));
		h[FRAME_HEAD_BYTES + meta] = 0xc6;
		put_be32(h + FRAME_HEAD_BYTES + meta + 1, (uint32_t)body);
		at += FRAME_HEAD_BYTES + meta + FRAME_BIN_BYTES + body;
	}
}

#endif
