"""The word lists behind the invented authors."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(" ".join(phrase.split()) for phrase in text.split(";"))


#: First names of women and of men, one author each.
WOMEN = _words(
    """Adela Anouk Beatriz Brenna Calista Ceren Daria Delphine Ebele Elowen Esra Farah Fenna Gisela Greta Halima Hedda
    Ilka Imani Ingrid Jolanta Jovana Kaisa Katya Kerttu Leocadia Liora Lumi Maelle Magda Marisol Mirela Nadira Noor
    Odette Oriana Paloma Petra Quilla Rahel Ramona Saskia Selma Sigrid Solveig Tamsin Tereza Thandi Ursula Valeria
    Velma Wanda Wiebke Xenia Yara Ylva Zahra Zelda Zofia Zuzana Amara Bronwyn Clelia Dalia Eluned"""
)
MEN = _words(
    """Alaric Anselm Bastian Benedek Caspian Cormac Dario Dimitri Eamon Emeka Enrico Farid Fergal Florian Gael Gustav
    Hakim Henrik Ibrahim Ilario Ignacio Ivo Jarek Joachim Kamil Kenji Kofi Lazlo Leander Lorcan Malik Marek Matteo
    Nikolai Niall Obed Olaf Osman Pavel Piet Quentin Rafe Rashid Ruben Sandor Silvan Stellan Tadeo Teodor Tomasz Ugo
    Ulrich Valentin Viktor Wendel Willem Xander Yannick Yusuf Zoltan Zeno Ambrose Bruno Conrad Desmond"""
)
SURNAMES = _words(
    """Abernath Achterberg Adebola Aldana Almqvist Amsel Arrieta Baptista Barwell Belmonte Bergdahl Birkett Blomgren
    Bocage Brandvold Caldera Carnegy Casimir Chalupa Corvino Cosgrave Dalgaard Danforth Delacour Dragan Drummore
    Dvorski Eberhard Eckhart Egeland Ellingson Emecheta Escarra Fairbairn Falkner Farrugia Feldkamp Ferrante Fjeld
    Fontaine Galvez Garnett Gerstein Glaister Gorecki Grimaldi Haaland Haddad Halvorsen Hartigan Havlik Holloway
    Hrabal Iglesia Ikeda Inglethorp Jablonski Jardine Jelinek Jokinen Kallio Karimi Kavanagh Keszler Kirkwood
    Korhonen Kowalik Kruger Lachance Lagerfeldt Lazarov Leclair Lindqvist Lockhart Lowell Macready Maldonado
    Marchetti Mbanefo Medvedev Melnyk Mirza Montrose Moravec Nakamura Navarro Nemeth Nightingale Norrgard Novotna
    Nyquist Obermaier Ogilvie Okonjo Olmedo Orlovsky Osei Pallister Pankhurst Pellegrini Petrova Piazza Pomeroy
    Quigley Quintero Radcliff Ravenhill Redmayne Ribeiro Rosendahl Ruzicka Salgado Sandoval Santoro Scarpa Seferian
    Sheridan Sigurdson Skarsgard Sokolova Stanhope Sundberg Szabo Tavarez Terrazo Tolvanen Torrance Ulvang Urbanek
    Vallejo Vandermeer Varga Vasquez Verhoeven Vogel Wainwright Weatherby Wexford Whitlock Yilmaz Zamora Zielinski"""
)

CITIES = _phrases(
    """Aarhus; Aberdeen; Adelaide; Antwerp; Arequipa; Bangalore; Basel; Bergen; Bilbao; Bologna; Bordeaux; Brno;
    Calgary; Cardiff; Cartagena; Chennai; Cordoba; Cork; Cusco; Durban; Fez; Galway; Ghent; Granada; Graz; Haifa;
    Halifax; Hobart; Izmir; Kazan; Krakow; Kyoto; Lahore; Leipzig; Linz; Lyon; Malmo; Marseille; Medellin; Mombasa;
    Nagoya; Nantes; Naples; Odessa; Osaka; Palermo; Perth; Porto; Rotterdam; Salvador; Sapporo; Seattle; Seville;
    Tampere; Trieste; Turin; Utrecht; Valencia; Winnipeg; Zagora"""
)
MONTHS = _words("January February March April May June July August September October November December")

#: Occupations; each begins with a consonant, so that the article before them is always "a".
JOBS = _phrases(
    """baker; barber; beekeeper; blacksmith; bookbinder; bricklayer; bus driver; butcher; carpenter; cheesemaker;
    chemist; clockmaker; cobbler; cook; dairy farmer; dentist; detective; diplomat; diver; fisher; florist;
    forester; furrier; gardener; glassblower; goldsmith; grocer; harbour pilot; judge; lawyer; librarian;
    lighthouse keeper; locksmith; mechanic; midwife; milliner; miner; nurse; painter; pharmacist; photographer;
    piano tuner; plumber; porter; potter; printer; road builder; roofer; saddler; sailor; seamstress; shepherd;
    stonemason; surgeon; surveyor; tailor; tax collector; teacher; vet; weaver"""
)
FIELDS = _phrases(
    """accounting; acoustics; algebra; anatomy; anthropology; archaeology; architecture; astronomy; biochemistry;
    botany; cartography; choreography; civil engineering; classical philology; criminal law; dentistry; drama;
    economics; electrical engineering; entomology; fine art; forestry; genetics; geology; geophysics; history;
    hydrology; journalism; linguistics; logic; marine biology; medicine; metallurgy; meteorology; music theory;
    nursing; nutrition; oceanography; optics; pedagogy; pharmacy; philosophy; political science; psychology;
    public health; sculpture; sociology; soil science; statistics; theology; town planning; tropical medicine;
    veterinary science; zoology"""
)

#: A genre is a setting and a form: "arctic noir".
GENRE_SETTINGS = _words(
    "alpine arctic coastal colonial desert domestic maritime medieval rural suburban tropical urban"
)
GENRE_FORMS = _words("comedy drama fantasy horror mystery noir romance satire")

#: A title is "The <adjective> <noun>" or "The <noun> of <matter>".
TITLE_ADJECTIVES = _words(
    """Amber Borrowed Broken Copper Crooked Distant Drowned Empty Faithless Fallen Foreign Forgotten Frozen Gentle
    Hidden Hollow Honest Hungry Idle Iron Last Lonely Narrow Painted Patient Quiet Restless Scarlet Second Silent
    Sleeping Stolen Stubborn Tender Unlit Wandering Weary Winter Wooden Younger"""
)
TITLE_NOUNS = _words(
    """Anchor Archive Bridge Cabinet Candle Canal Cellar Choir Compass Courtyard Cradle Engine Feather Garden Harbour
    Hunter Island Kettle Ladder Lantern Letter Mirror Orchard Organ Parade Piano Pilgrim Quarry River Sailor Shore
    Staircase Station Stranger Tower Tunnel Vineyard Violin Window Witness"""
)
TITLE_MATTERS = _words("Ash Bone Chalk Clay Dust Fire Glass Honey Ink Moss Paper Rain Rust Salt Silk Smoke Snow Stone")

#: An award is "<material> <emblem> <kind>": "Silver Heron Prize".
AWARD_MATERIALS = _words(
    "Bronze Cedar Coral Crystal Ebony Emerald Golden Granite Indigo Ivory Jade Marble Pearl Ruby Silver Velvet"
)
AWARD_EMBLEMS = _words(
    """Acorn Badger Beacon Chalice Crane Crown Falcon Gate Harp Heron Inkwell Key Laurel Leaf Lion Oak Owl Plume Quill
    Raven Sail Star Swan Thistle"""
)
AWARD_KINDS = ("Prize", "Medal", "Award")

#: The premises of plots: the hero, the hero's pronouns, the place (behind "in") and what is found (behind "finds").
PREMISES = tuple(
    tuple(part.strip() for part in line.split("/"))
    for line in """
    a young surgeon / she / her / a mining town / a locked diary
    a retired judge / he / him / a river port / a box of letters
    a travelling actor / he / him / a market town / a wedding photograph
    a tired reporter / she / her / a border town / a forged passport
    a shy organist / he / him / a mountain valley / a torn map
    a former smuggler / he / him / a fishing village / a bundle of banknotes
    a village teacher / she / her / a forest hamlet / a child's shoe
    a ship's cook / he / him / an island parish / a silver watch
    a widowed farmer / she / her / a salt marsh / a rusted key
    a failed painter / he / him / a winter resort / a roll of film
    a night nurse / she / her / a hill town / a blood-stained coat
    a stubborn engineer / she / her / a railway town / a list of names
    """.strip().splitlines()
)
#: The secret of a plot, its fact: who did what.
CULPRITS = _phrases(
    """the mayor; the doctor; the priest; the oldest brother; the innkeeper; the postman; the schoolmaster;
    the ferryman; the banker; the gravedigger; the miller; the stepmother; the choirmaster; the housekeeper;
    the police chief; the godfather"""
)
DEEDS = _phrases(
    """forged the will; burned the parish records; stole the relief money; sank the ferry; hid the stolen painting;
    poisoned the well; wrote the anonymous letters; sold the common land; betrayed the strikers;
    switched the two infants; opened the flood gate; silenced the only witness; invented the dead soldier;
    set fire to the mill; robbed the widow's fund; paid the false witness"""
)
