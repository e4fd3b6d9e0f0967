/* The payloads of items: as they were put, with the bytes of elements taken apart, compressed. */
#include <zstd.h>

#include "base/mem.h"
#include "store/item.h"

void store_payload_split(unsigned element, const struct iovec *iov, int iovs, size_t size, uint8_t *data)
{
	const size_t count = size / element, whole = count * element;
	size_t at = 0, i = 0;
	unsigned k = 0;

	for (int v = 0; v < iovs; v++) {
		const uint8_t *p = iov[v].iov_base;

		for (size_t j = 0; j < iov[v].iov_len; j++, at++) {
			if (at >= whole) {
				data[at] = p[j];
				continue;
			}
			data[k * count + i] = p[j];
			if (++k == element) {
				k = 0;
				i++;
			}
		}
	}
	memset(data + size, 0, round_up(size, FRAME_ALIGN) - size);
}

static void join2(const uint8_t *a, const uint8_t *b, size_t count, uint8_t *p)
{
	for (size_t i = 0; i < count; i++) {
		p[2 * i] = a[i];
		p[2 * i + 1] = b[i];
	}
}

void store_item_plain(const struct store_item *item, const uint8_t *data, void *dst)
{
	const size_t size = (size_t)item->size, count = item->planes ? size / item->planes : 0;
	uint8_t *p = dst;

	if (item->planes == 2)
		join2(data, data + count, count, p);
	else
		for (size_t i = 0; i < count; i++)
			for (unsigned k = 0; k < item->planes; k++)
				p[i * item->planes + k] = data[k * count + i];
	if (size > count * item->planes)
		memcpy(p + count * item->planes, data + count * item->planes, size - count * item->planes);
}

bool store_item_decode(const struct store_item *item, const uint8_t *stored, uint8_t *data)
{
	const size_t want = round_up((size_t)item->size, FRAME_ALIGN);
	size_t n = ZSTD_findFrameCompressedSize(stored, item->stored);

	if (!item->zstd || ZSTD_isError(n) || item->stored - n >= FRAME_ALIGN)
		return false;
	return ZSTD_decompress(data, want, stored, n) == want;
}
