"""Makes film_reviews.csv: reviews of films that do not exist, in the form of IMDB. Run: python film_reviews.py

Each review is put together of sentences about parts of a film. Most of them agree with its label; in every second
review one of them does not, as in real ones. The same seed makes the same file.
"""

import csv
import random
from pathlib import Path

SEED, NUM_REVIEWS = 11, 600
FILE = Path(__file__).with_suffix(".csv")

FILMS = [
    *("The Lantern Keeper", "Nine Bridges", "Salt in the Attic", "A Quiet Season", "The Last Ferry", "Harbour Lights"),
    *("Paper Thrones", "The Glass Orchard", "Winter at Kelm", "Under the Tin Roof", "The Cartographer", "Blue Static"),
]
OPENINGS = [
    "I saw {film} last night with two friends.",
    "{film} had been on my list for about a year.",
    "We picked {film} because the other room was sold out.",
    "My sister lent me {film} and told me nothing about it.",
    "After all the posters in the underground I had to see {film}.",
    "{film} runs for a little over two hours.",
    "I had read the book before I sat down for {film}.",
    "{film} opens with a long shot of an empty street.",
    "This was my second evening with {film}.",
    "The festival showed {film} in a half-full hall.",
]
SENTENCES = {
    "acting": (
        [
            "Nobody on the screen seems to believe a word they say.",
            "The lead mumbles through every scene as if reading a timetable.",
            "Two good actors are given nothing to do and do it badly.",
            "The children were the only ones who did not overact.",
            "Her tears come and go like a lamp being switched.",
            "I have seen livelier performances at a school play.",
            "He shouts when he should whisper, and the other way round.",
        ],
        [
            "The lead says more with one look than others with a page.",
            "Every small role is played by someone who means it.",
            "I forgot within minutes that these were actors.",
            "She carries the second half on her own, and carries it well.",
            "The two brothers are so well cast that I searched whether they are related.",
            "He plays the old teacher with warmth and without sugar.",
            "Even the man who only sells newspapers is a joy to watch.",
        ],
    ),
    "story": (
        [
            "The plot has holes that a bus could turn in.",
            "Whatever happens, happens because the script needs it.",
            "I guessed the murderer before the titles were over.",
            "Three stories are begun and none of them is told.",
            "The secret that everybody whispers about turns out to be nothing.",
            "It copies a better film scene by scene and forgets why they worked.",
            "By the middle I had stopped asking who these people are.",
        ],
        [
            "The story surprised me twice and cheated not once.",
            "What looks like a detail at the start matters in the end.",
            "It trusts its audience and explains nothing twice.",
            "A simple idea is followed to its end with great care.",
            "The turn in the middle made the whole hall gasp.",
            "I kept thinking about their choice for days.",
            "Three lives cross, and each of them is worth a film.",
        ],
    ),
    "pictures": (
        [
            "Half of it is so dark that I only heard the fight.",
            "The camera shakes until one feels seasick.",
            "Every street looks like a set that is still being painted.",
            "The effects belong to a video game of the nineties.",
            "Blue light everywhere, and for no reason at all.",
            "The cuts come so fast that no face stays in mind.",
        ],
        [
            "Each picture could hang on a wall.",
            "The night scenes are lit as I have rarely seen it.",
            "One can almost smell the sea in these shots.",
            "The camera waits, and what it waits for is worth it.",
            "The mountains are filmed with real love for the place.",
            "Colours tell here what the people cannot say.",
        ],
    ),
    "music": (
        [
            "The violins never stop telling me what to feel.",
            "The songs are so loud that the dialogue drowns.",
            "The same four notes for two hours gave me a headache.",
            "A pop song in the funeral scene: who allowed that?",
            "The sound was out of step with the lips.",
        ],
        [
            "The piano comes in just three times, and each time it hurts.",
            "I bought the soundtrack on the way home.",
            "The silence before the last scene is the best music of the year.",
            "The songs are sung by the cast itself, and beautifully.",
            "The score lifts the quiet scenes without pushing them.",
        ],
    ),
    "pace": (
        [
            "The first hour drags like a wet coat.",
            "I looked at my watch more often than at the screen.",
            "The jokes are explained until they are dead.",
            "Someone in the row behind us snored, and I envied him.",
            "It ends four times, each time too late.",
            "Forty minutes less would still have been too long.",
        ],
        [
            "Two hours passed like twenty minutes.",
            "There is not one scene that I would cut.",
            "It takes its time, and I was glad of every minute.",
            "The jokes sit, even the quiet ones.",
            "I was tense from the first minute to the last.",
            "It ends just where it should, which few films manage.",
        ],
    ),
}
VERDICTS = (
    [
        "Save your money.",
        "I left ten minutes before the end.",
        "A waste of good popcorn.",
        "I cannot think of anyone I would send there.",
        "What a disappointment.",
        "Once was one time too many.",
    ],
    [
        "Go and see it.",
        "I will watch it again next week.",
        "It deserves every prize that it gets.",
        "Take someone you love.",
        "What a lovely surprise.",
        "The best evening in the cinema for a long time.",
    ],
)


def review(draw: random.Random, label: int) -> str:
    """One review; label 0 is negative, 1 positive."""
    parts = draw.sample(list(SENTENCES), draw.randint(3, 4))
    sides = [label] * len(parts)
    if draw.random() < 0.5:
        sides[draw.randrange(len(parts))] = 1 - label
    told = [draw.choice(SENTENCES[part][side]) for part, side in zip(parts, sides, strict=True)]
    verdict = [draw.choice(VERDICTS[label])] if draw.random() < 0.4 else []
    return " ".join([draw.choice(OPENINGS).format(film=draw.choice(FILMS)), *told, *verdict])


def reviews() -> list[tuple[str, int]]:
    """All of them, each once, as many negative as positive ones."""
    draw = random.Random(SEED)
    made: dict[str, int] = {}
    while len(made) < NUM_REVIEWS:
        label = len(made) % 2
        made.setdefault(review(draw, label), label)
    rows = list(made.items())
    draw.shuffle(rows)
    return rows


if __name__ == "__main__":
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["text", "label"])
        writer.writerows(reviews())
